"""The socket, and the code that moves frames through it: threads for the blocking client, an event loop for the asyncio one."""
