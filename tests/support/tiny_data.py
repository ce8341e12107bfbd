# Data sets of a few images, in the formats that Lamina reads, and ways to damage them.
import gzip
import pathlib
import struct
import zlib


def write(path, data):
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def idx(extents, data, magic=0x800):
    """An IDX file of bytes: magic number, extents, data."""
    return struct.pack(">%dI" % (1 + len(extents)), magic + len(extents), *extents) + bytes(data)


def mnist(folder, count=64, labels=None, side=28):
    """Images whose brightness tells the class, for training and for validation."""
    labels = [i % 10 for i in range(count)] if labels is None else labels
    pixels = b"".join(bytes([25 * (i % 10)]) * (side * side) for i in range(count))
    for name in ("train", "t10k"):
        write(f"{folder}/{name}-images-idx3-ubyte", idx((count, side, side), pixels))
        write(f"{folder}/{name}-labels-idx1-ubyte", idx((len(labels),), labels))
    return pathlib.Path(folder)


def zip_file(path):
    """Replaces a file with a gzip file."""
    data = gzip.compress(path.read_bytes(), mtime=0)
    path.unlink()
    return write(f"{path}.gz", data)


def cifar10(folder, count=16):
    record = b"".join(bytes([i % 10]) + bytes([20 * (i % 10)]) * 3072 for i in range(count))
    for name in [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]:
        write(f"{folder}/{name}", record)
    return pathlib.Path(folder)


def png(side, value):
    def chunk(kind, data):
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    rows = (b"\0" + bytes([value]) * side) * side
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">2I5B", side, side, 8, 0, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def jpeg(side, value):
    """A grey baseline JPEG: blocks of 8x8 whose mean alone is coded, with 4 bits per category."""
    def segment(marker, data):
        return bytes([0xFF, marker]) + struct.pack(">H", len(data) + 2) + data

    bits, previous = "", 0
    for block in range((side // 8) ** 2):
        mean = 8 * ((value + 5 * block) % 256 - 128)  # the DC term; the quantizer is 1
        step, previous = mean - previous, mean
        size = abs(step).bit_length()
        bits += format(size, "04b")  # the code of a category is its number
        if size:
            bits += format(step if step > 0 else step + (1 << size) - 1, f"0{size}b")
        bits += "0"  # end of block: all else is 0
    bits += "1" * (-len(bits) % 8)
    scan = bytes(int(bits[i:i + 8], 2) for i in range(0, len(bits), 8)).replace(b"\xff", b"\xff\0")
    dc = bytes([0, 0, 0, 0, 12] + [0] * 12) + bytes(range(12))  # 12 codes of 4 bits
    ac = bytes([0x10, 1] + [0] * 15) + b"\0"  # one code of 1 bit
    return (b"\xff\xd8" + segment(0xDB, b"\0" + b"\1" * 64) +
            segment(0xC0, struct.pack(">BHHB3B", 8, side, side, 1, 1, 0x11, 0)) +
            segment(0xC4, dc) + segment(0xC4, ac) + segment(0xDA, bytes([1, 1, 0, 0, 63, 0])) +
            scan + b"\xff\xd9")


def images(folder, classes=2, count=10, side=64):
    """CLASS/N.jpg and .png by turns."""
    for c in range(classes):
        for i in range(count):
            make, kind = ((jpeg, "jpg"), (png, "png"))[i % 2]
            write(f"{folder}/class{c}/{i}.{kind}", make(side, 20 + 100 * c + i))
    return pathlib.Path(folder)


def cut(path, keep=0.5):
    """Truncates a file to a part of its bytes."""
    data = path.read_bytes()
    path.write_bytes(data[:int(len(data) * keep)])


def flip(path, at, value=None):
    """Overwrites a byte; inverts it where no value is given."""
    data = bytearray(path.read_bytes())
    data[at] = data[at] ^ 0xFF if value is None else value
    path.write_bytes(data)
