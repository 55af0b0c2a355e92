"""Look at what lies in queues: find, browse, and read them as they were at one moment."""
