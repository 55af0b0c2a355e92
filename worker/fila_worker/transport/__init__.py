"""How frames come to a worker and leave it: links to routers, and a socket for clients."""
