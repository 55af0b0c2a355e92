"""The socket, and how frames move through it: threads for the blocking client, an event loop for the asyncio one."""
