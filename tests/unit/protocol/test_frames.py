"""The header: 18 bytes that every version can read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fila_proto_zmq.errors import InvalidFrameError, UnsupportedVersionError
from fila_proto_zmq.frames import ERROR, HEADER_BYTES, REPLY, VERSIONS, Header, check_version, pack_header, unpack_header

GOLDEN = [
    (Header(20, 0, 0, 7), "4643" "01" "14" "0000" "00000000" "0000000000000007"),
    (Header(20, REPLY | ERROR, 0, 7), "4643" "01" "14" "0003" "00000000" "0000000000000007"),
    (Header(33, 0, 0, 0), "4643" "01" "21" "0000" "00000000" "0000000000000000"),
    (Header(31, REPLY, 9, 0x0102030405060708), "4643" "01" "1f" "0001" "00000009" "0102030405060708"),
    (Header(1, 0, 0, 2**64 - 1, version=9), "4643" "09" "01" "0000" "00000000" "ffffffffffffffff"),
]  # fmt: skip


@pytest.mark.parametrize(("header", "golden"), GOLDEN)
def test_golden_headers(header: Header, golden: str) -> None:
    packed = pack_header(header.opcode, header.request, header.flags, header.epoch, header.version)
    assert packed.hex() == golden
    assert unpack_header(bytes.fromhex(golden)) == header


@given(
    opcode=st.integers(0, 255),
    flags=st.integers(0, 2**16 - 1),
    epoch=st.integers(0, 2**32 - 1),
    request=st.integers(0, 2**64 - 1),
    version=st.integers(0, 255),
)
def test_headers_survive_the_wire(opcode: int, flags: int, epoch: int, request: int, version: int) -> None:
    packed = pack_header(opcode, request, flags, epoch, version)
    assert len(packed) == HEADER_BYTES
    assert unpack_header(packed) == Header(opcode, flags, epoch, request, version)


@given(st.binary(max_size=40) | st.binary(min_size=16, max_size=16).map(lambda rest: b"FC" + rest))
def test_random_bytes_are_a_header_or_refused(data: bytes) -> None:
    try:
        header = unpack_header(data)
    except InvalidFrameError:
        assert len(data) != HEADER_BYTES or not data.startswith(b"FC")
    else:
        assert pack_header(header.opcode, header.request, header.flags, header.epoch, header.version) == data


@pytest.mark.parametrize("length", [0, 1, 17, 19])
def test_a_header_of_another_length_is_refused_with_its_length(length: int) -> None:
    with pytest.raises(InvalidFrameError, match=f"got {length} bytes"):
        unpack_header((b"FC" + bytes(30))[:length])


def test_a_version_that_is_not_spoken_is_refused_with_those_that_are() -> None:
    check_version(Header(1, 0, 0, 1))
    with pytest.raises(UnsupportedVersionError, match="version 77") as caught:
        check_version(Header(1, 0, 0, 1, version=77))
    assert caught.value.details == {"versions": list(VERSIONS)}
