"""The links to the routers. All routers are alike, and clients may be at any of them.

:mod:`link` is the wire to one router, :mod:`links` all of them with the way of each frame, :mod:`bank_lender` decides which router grants
tokens.
"""
