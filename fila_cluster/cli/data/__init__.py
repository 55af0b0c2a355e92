"""Commands for stored data: check it, change its shards, back it up."""
