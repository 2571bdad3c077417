#!/usr/bin/env python3
"""A reader of the keyed packet that PROTOCOL.md walks through, written from the page alone and with
another library: derives the key, checks the tag, finds each changed bit."""
import hashlib, hmac, os, re, sys, unittest

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
except ImportError:
    sys.exit("SKIP: python3-cryptography is not installed")

PAGE = os.environ.get("TARPON_PROTOCOL_PAGE") or os.path.join(os.path.dirname(__file__), "../../PROTOCOL.md")
HEADER, TAG = 64, 16
JOB_KEY = bytes(range(32))  # of the page


def packet(name):
    """The bytes of a packet; what it does not show is as in the header of `ready`."""
    text = re.search(rf"```packet {name}\n(.*?)```", open(PAGE).read(), re.S).group(1)
    start = b"" if name == "ready" else packet("ready")[:HEADER]
    result = bytearray(start)
    for line in text.splitlines():
        offset, rest = line.split(":", 1)
        data = bytes.fromhex(rest.split("|")[0].strip())
        at = int(offset)
        result[at:at + len(data)] = data
    return bytes(result)


def hkdf_sha256(secret, info, size):
    """RFC 5869, without salt."""
    key = hmac.new(bytes(32), secret, hashlib.sha256).digest()
    block, result = b"", b""
    while len(result) < size:
        block = hmac.new(key, block + info + bytes([len(result) // 32 + 1]), hashlib.sha256).digest()
        result += block
    return result[:size]


def is_right(datagram, receiver, number):
    sender = int.from_bytes(datagram[8:10], "little")
    info = b"tarpon packet 1" + b"".join(
        value.to_bytes(size, "little") for value, size in ((sender, 2), (receiver, 2), (number >> 22, 8)))
    nonce = number.to_bytes(8, "little") + bytes(4)
    try:
        AESGCM(hkdf_sha256(JOB_KEY, info, 16)).decrypt(nonce, datagram[-TAG:], datagram[:-TAG])
        return True
    except InvalidTag:
        return False


class KeyedPacketTest(unittest.TestCase):
    def setUp(self):
        self.datagram = packet("keyed")
        self.check = int.from_bytes(self.datagram[60:64], "little")

    def test_fields(self):
        self.assertEqual(self.datagram[25] >> 4 & 3, 3)
        length = int.from_bytes(self.datagram[26:28], "little")
        self.assertEqual(len(self.datagram), HEADER + length + TAG)
        self.assertEqual(self.check >> 31, 0, "to one rank")

    def test_tag(self):
        self.assertTrue(is_right(self.datagram, 0, self.check))
        self.assertFalse(is_right(self.datagram, 1, self.check), "to another rank")
        self.assertFalse(is_right(self.datagram, 0, self.check + 1), "another number")

    def test_every_changed_bit(self):
        for bit in range(len(self.datagram) * 8):
            changed = bytearray(self.datagram)
            changed[bit // 8] ^= 1 << bit % 8
            self.assertFalse(is_right(bytes(changed), 0, self.check), bit)


if __name__ == "__main__":
    unittest.main()
