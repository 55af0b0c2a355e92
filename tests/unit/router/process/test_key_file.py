"""The file of the API keys: with several routers it is a copy of what the log of shard 0 has."""

from pathlib import Path

from fila_proto_zmq.commands import ApiKey
from fila_router.key_file import KEYS_FILE, load_keys, load_version, save_keys

KEY = ApiKey("shop", "sha256", b"digest", ["produce:*"], 1, 2, 3)


def test_it_names_the_version_of_its_keys(tmp_path: Path):
    save_keys(tmp_path, [KEY], 7)
    assert (load_keys(tmp_path), load_version(tmp_path)) == ([KEY], 7)


def test_a_file_of_an_only_router_has_no_version(tmp_path: Path):
    save_keys(tmp_path, [KEY])
    assert load_version(tmp_path) == 0
    path = tmp_path / KEYS_FILE
    path.write_text(path.read_text().replace('"version": 0', '"more": 0'))
    assert (load_keys(tmp_path), load_version(tmp_path)) == ([KEY], 0)
