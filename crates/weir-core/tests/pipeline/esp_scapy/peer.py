"""scapy's ESP as a filter: a case a line in, what scapy makes of it a line out.

In:  <number> seal|open <mode> <outer source> <outer destination> <encryption> <integrity or -> <key or ->
     <integrity key or -> <SPI> <sequence, 64 bits> <esn: 0 or 1> <UDP port or 0> <packet>
Out: <number> <packet>, or <number> error <why>

Keys and packets are hexadecimal; packets begin at their IP header. `seal` protects the packet as it is,
`open` checks the integrity of one that is protected and returns what was inside.
"""

import socket
import struct
import sys

from scapy.layers.inet import IP
from scapy.layers.inet6 import IPv6
from scapy.layers.ipsec import AUTH_ALGOS, ESP, AuthAlgo, SecurityAssociation
from scapy.packet import raw
from scapy.utils import checksum

ENCRYPTION = {
    "null": "NULL",
    "aes-gcm": "AES-GCM",
    "aes-cbc": "AES-CBC",
    "chacha20-poly1305": "CHACHA20-POLY1305",
}
INTEGRITY = {
    "hmac-sha1-96": "HMAC-SHA1-96",
    "hmac-sha2-256-128": "SHA2-256-128",
    "hmac-sha2-384-192": "SHA2-384-192",
    "hmac-sha2-512-256": "SHA2-512-256",
}


class WithHigh(AuthAlgo):
    """HMAC with the high half of the sequence number behind the packet (RFC 4303 2.2.1), which scapy knows
    of in AH only."""

    def __init__(self, plain, high):
        super().__init__(plain.name, plain.mac, plain.digestmod, plain.icv_size, plain.key_size)
        self.high = struct.pack("!L", high)

    def tag(self, data, key):
        mac = self.new_mac(key)
        mac.update(data + self.high)
        return mac.finalize()[: self.icv_size]

    def sign(self, pkt, key, esn_en=False, esn=0):
        pkt[ESP].data += self.tag(raw(pkt[ESP]), key)
        return pkt

    def verify(self, pkt, key, esn_en=False, esn=0):
        whole = raw(pkt)
        data, icv = whole[: -self.icv_size], whole[-self.icv_size :]
        if self.tag(data, key) != icv:
            raise ValueError("integrity")


def packet(data):
    return IP(data) if data[0] >> 4 == 4 else IPv6(data)


def key(text):
    return None if text == "-" else bytes.fromhex(text)


def association(mode, source, destination, encryption, integrity, keys, spi, sequence, esn):
    tunnel = None
    if mode == "tunnel":
        tunnel = (IPv6 if ":" in source else IP)(src=source, dst=destination)
    name = encryption
    if name not in ENCRYPTION:
        name = name.rsplit("-", 1)[0]
    high = sequence >> 32
    sa = SecurityAssociation(
        ESP,
        spi=spi,
        crypt_algo=ENCRYPTION[name],
        crypt_key=keys[0],
        auth_algo=INTEGRITY.get(integrity),
        auth_key=keys[1],
        tunnel_header=tunnel,
        esn_en=esn,
        esn=high if esn else 0,
    )
    if esn and integrity in INTEGRITY:
        sa.auth_algo = WithHigh(AUTH_ALGOS[INTEGRITY[integrity]], high)
    return sa


def rewritten(data, protocol, grown):
    """The IP header of a packet without options, for another protocol and length."""
    if data[0] >> 4 == 4:
        header = IP(data[:20])
        header.proto, header.len = protocol, header.len + grown
        del header.chksum
    else:
        header = IPv6(data[:40])
        header.nh, header.plen = protocol, header.plen + grown
    return raw(header)


def with_udp(data, port):
    """ESP behind a UDP header (RFC 3948 2.1): scapy's own says it is 8 bytes long."""
    header = rewritten(data, socket.IPPROTO_UDP, 8)
    esp = data[len(header) :]
    return header + struct.pack("!HHHH", port, port, len(esp) + 8, 0) + esp


def right_checksum(header, datagram):
    """None over IPv4 (RFC 3948 2.1), a right one over IPv6 (RFC 8200 8.1)."""
    if len(header) == 20:
        return datagram[6:8] == b"\0\0"
    pseudo = header[8:40] + struct.pack("!II", len(datagram), socket.IPPROTO_UDP)
    return datagram[6:8] != b"\0\0" and checksum(pseudo + datagram) == 0


def without_udp(data, port):
    header = rewritten(data, socket.IPPROTO_ESP, -8)
    at = len(header)
    udp = struct.unpack("!HHHH", data[at : at + 8])
    if udp[:3] != (port, port, len(data) - at) or not right_checksum(header, data[at:]):
        raise ValueError("UDP header %r" % (udp,))
    return header + data[at + 8 :]


def answer(action, mode, source, destination, encryption, integrity, crypt, auth, spi, sequence, esn, port, data):
    sequence, port, data = int(sequence), int(port), bytes.fromhex(data)
    keys = (key(crypt), key(auth))
    sa = association(mode, source, destination, encryption, integrity, keys, int(spi), sequence, esn == "1")
    if action == "seal":
        sealed = raw(sa.encrypt(packet(data), seq_num=sequence & 0xFFFFFFFF))
        return with_udp(sealed, port) if port else sealed
    outer = packet(without_udp(data, port) if port else data)
    if mode == "tunnel" and (outer.src, outer.dst) != (source, destination):
        raise ValueError("outer header " + repr(outer))
    if outer[ESP].seq != sequence & 0xFFFFFFFF:
        raise ValueError("sequence number %d" % outer[ESP].seq)
    return raw(sa.decrypt(outer))


for line in sys.stdin:
    number, *case = line.split()
    try:
        print(number, answer(*case).hex())
    except Exception as e:  # what scapy cannot do is the other side's to judge
        print(number, "error", type(e).__name__, str(e).replace("\n", " "))
