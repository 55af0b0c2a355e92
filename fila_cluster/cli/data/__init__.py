"""Commands for what is stored: check it, change its shards, back it up."""
