"""Dead letters apart from any page: kinds of errors (:mod:`patterns`, :mod:`groups`), and long work on many of them (:mod:`work`, :mod:`jobs`)."""
