# SPDX-License-Identifier: Apache-2.0
"""XXH3 with 64 bits (github.com/Cyan4973/xxHash, doc/xxhash_spec.md): ids of texts, and checksums of files."""

from __future__ import annotations

from typing import Any, Union

import numpy as np

_MASK = 2**64 - 1
_P32_1, _P32_2, _P32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
_P64_1, _P64_2, _P64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P64_4, _P64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_MIX_1, _MIX_2 = 0x165667919E3779F9, 0x9FB21C651E98DF25
_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1c"
    "ded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea3"
    "71644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d"
    "8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce"
    "45cb3a8f95160428afd7fbcabb4b407e"
)
# Blocks of 1024 bytes whose lanes are computed together.
_CHUNK_BLOCKS = 4096

_Bytes = Union[bytes, bytearray, memoryview]


def _read64(data: _Bytes, at: int) -> int:
    return int.from_bytes(data[at:at + 8], "little")


def _read32(data: _Bytes, at: int) -> int:
    return int.from_bytes(data[at:at + 4], "little")


def _rotate(x: int, bits: int) -> int:
    return (x << bits | x >> (64 - bits)) & _MASK


def _fold(a: int, b: int) -> int:
    product = a * b
    return (product ^ product >> 64) & _MASK


def _avalanche(h: int) -> int:
    h = (h ^ h >> 37) * _MIX_1 & _MASK
    return h ^ h >> 32


def _avalanche_64(h: int) -> int:
    h = (h ^ h >> 33) * _P64_2 & _MASK
    h = (h ^ h >> 29) * _P64_3 & _MASK
    return h ^ h >> 32


def _mix(data: _Bytes, at: int, key: int, seed: int) -> int:
    return _fold(_read64(data, at) ^ (_read64(_SECRET, key) + seed & _MASK),
                 _read64(data, at + 8) ^ (_read64(_SECRET, key + 8) - seed & _MASK))


def _to_16(data: _Bytes, seed: int) -> int:
    n = len(data)
    if n == 0:
        return _avalanche_64(seed ^ _read64(_SECRET, 56) ^ _read64(_SECRET, 64))
    if n <= 3:
        combined = data[0] << 16 | data[n >> 1] << 24 | data[n - 1] | n << 8
        return _avalanche_64(combined ^ ((_read32(_SECRET, 0) ^ _read32(_SECRET, 4)) + seed & _MASK))
    if n <= 8:
        seed ^= int.from_bytes((seed & 0xFFFFFFFF).to_bytes(4, "little"), "big") << 32
        key = (_read64(_SECRET, 8) ^ _read64(_SECRET, 16)) - seed & _MASK
        h = (_read32(data, n - 4) + (_read32(data, 0) << 32)) ^ key
        h = (h ^ _rotate(h, 49) ^ _rotate(h, 24)) * _MIX_2 & _MASK
        h = (h ^ (h >> 35) + n) * _MIX_2 & _MASK
        return h ^ h >> 28
    low = _read64(data, 0) ^ ((_read64(_SECRET, 24) ^ _read64(_SECRET, 32)) + seed & _MASK)
    high = _read64(data, n - 8) ^ ((_read64(_SECRET, 40) ^ _read64(_SECRET, 48)) - seed & _MASK)
    swapped = int.from_bytes(low.to_bytes(8, "little"), "big")
    return _avalanche(n + swapped + high + _fold(low, high) & _MASK)


def _to_240(data: _Bytes, seed: int) -> int:
    n = len(data)
    h = n * _P64_1
    if n <= 128:
        for i in range((n - 1) // 32 + 1):
            h += _mix(data, 16 * i, 32 * i, seed) + _mix(data, n - 16 * (i + 1), 32 * i + 16, seed)
        return _avalanche(h & _MASK)
    for i in range(8):
        h += _mix(data, 16 * i, 16 * i, seed)
    h = _avalanche(h & _MASK)
    for i in range(8, n // 16):
        h += _mix(data, 16 * i, 16 * (i - 8) + 3, seed)
    return _avalanche(h + _mix(data, n - 16, 136 - 17, seed) & _MASK)


def _lanes(stripes: Any, keys: Any) -> Any:
    """Returns what stripes of 8 words add to the lanes: [blocks, stripes, 8] to [blocks, 8]."""
    keyed = stripes ^ keys
    products = (keyed & np.uint64(0xFFFFFFFF)) * (keyed >> np.uint64(32))
    return (products + stripes[..., [1, 0, 3, 2, 5, 4, 7, 6]]).sum(axis=1, dtype=np.uint64)


def _long(data: _Bytes, seed: int) -> int:
    n = len(data)
    secret = _SECRET
    if seed:
        words = [_read64(secret, 8 * i) + (-seed if i % 2 else seed) & _MASK for i in range(24)]
        secret = b"".join(word.to_bytes(8, "little") for word in words)

    def keys(at: int) -> Any:
        return np.frombuffer(secret, "<u8", 8, at)

    lanes = np.array([_P32_3, _P64_1, _P64_2, _P64_3, _P64_4, _P32_2, _P64_5, _P32_1], np.uint64)
    of_stripes = np.stack([keys(8 * i) for i in range(16)])
    last_keys, prime, shift = keys(192 - 64), np.uint64(_P32_1), np.uint64(47)
    blocks = (n - 1) // 1024
    for first in range(0, blocks, _CHUNK_BLOCKS):
        count = min(_CHUNK_BLOCKS, blocks - first)
        words = np.frombuffer(data, "<u8", 128 * count, 1024 * first).reshape(count, 16, 8)
        for added in _lanes(words, of_stripes):
            lanes = lanes + added
            lanes = (lanes ^ lanes >> shift ^ last_keys) * prime
    rest = (n - 1 - 1024 * blocks) // 64
    if rest:
        words = np.frombuffer(data, "<u8", 8 * rest, 1024 * blocks).reshape(1, rest, 8)
        lanes = lanes + _lanes(words, of_stripes[:rest])[0]
    words = np.frombuffer(data, "<u8", 8, n - 64).reshape(1, 1, 8)
    lanes = lanes + _lanes(words, keys(192 - 64 - 7))[0]
    mixed = [int(lane) for lane in lanes]
    h = n * _P64_1
    for i in range(4):
        h += _fold(mixed[2 * i] ^ _read64(secret, 11 + 16 * i), mixed[2 * i + 1] ^ _read64(secret, 19 + 16 * i))
    return _avalanche(h & _MASK)


def xxh3(data: _Bytes, seed: int = 0) -> int:
    """Returns the hash of bytes."""
    if len(data) <= 16:
        return _to_16(data, seed)
    return _to_240(data, seed) if len(data) <= 240 else _long(data, seed)
