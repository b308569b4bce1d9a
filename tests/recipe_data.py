"""Small files in the form in which the data sets are published."""

import gzip

import numpy as np

_rng = np.random.default_rng(7)


def _abalone(number):
    size = 0.3 + 0.4 * _rng.random()
    whole = 4 * size**3 * (0.9 + 0.2 * _rng.random())
    parts = [round(whole * share, 4) for share in (0.43, 0.22, 0.29)]
    sex = "IFM"[number % 3]
    return [
        sex,
        round(size, 3),
        round(0.8 * size, 3),
        round(0.27 * size, 3),
        round(whole, 4),
        *parts,
        int(3 + 14 * size),
    ]


ABALONE = [["M", 0.455, 0.365, 0.095, 0.514, 0.2245, 0.101, 0.15, 15], *(_abalone(number) for number in range(79))]


def _adult(number, dot=""):
    age, hours, gain = int(18 + 50 * _rng.random()), int(20 + 40 * _rng.random()), int(9000 * (_rng.random() < 0.1))
    rich = age > 45 and hours > 40
    marital = "Married-civ-spouse" if number % 2 else "Never-married"
    work = "Sales" if number % 3 else "?" if number % 7 == 0 else "Craft-repair"
    middle = f"Private, {1000 + number}, HS-grad, 9, {marital}, {work}, Husband, White, Male"
    return f"{age}, {middle}, {gain}, 0, {hours}, United-States, {'>50K' if rich else '<=50K'}{dot}"


_FIRST = "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40"
ADULT = [f"{_FIRST}, United-States, <=50K", *(_adult(number) for number in range(300))]
ADULT_TEST = [_adult(number, ".") for number in range(500)]


def write_abalone(data, rows=ABALONE):
    (data / "abalone").mkdir(parents=True)
    (data / "abalone" / "abalone.data").write_text("\n".join(",".join(map(str, row)) for row in rows) + "\n")


def write_adult(data):
    (data / "adult").mkdir(parents=True, exist_ok=True)
    (data / "adult" / "adult.data").write_text("\n".join(ADULT) + "\n\n")
    (data / "adult" / "adult.test").write_text("|1x3 Cross validator\n" + "\n".join(ADULT_TEST) + "\n")


def write_images(data, name, train=40, test=30):
    """Write images with a bright bar whose height gives the class; returns images and classes by part."""
    (data / name).mkdir(parents=True)
    rng, images, labels = np.random.default_rng(1), {}, {}
    for part, n in (("train", train), ("t10k", test)):
        labels[part] = np.arange(n, dtype=np.uint8) % 10
        images[part] = rng.integers(0, 60, (n, 28, 28), np.uint8)
        for image, label in zip(images[part], labels[part], strict=True):
            image[2 * label + 3 : 2 * label + 6, 4:24] = 250
        for what, array in (("images-idx3", images[part]), ("labels-idx1", labels[part])):
            header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
            (data / name / f"{part}-{what}-ubyte.gz").write_bytes(gzip.compress(header + array.tobytes()))
    return images, {part: classes.astype(np.int64) for part, classes in labels.items()}


def write_sst2(data, train, test):
    """Write texts and classes of both parts; one file has the label first, the other the sentence, as both exist."""
    (data / "sst2").mkdir(parents=True)
    for name, (texts, classes), header in (("train", train, "label\tsentence"), ("dev", test, "sentence\tlabel")):
        pairs = zip(classes, texts, strict=True)
        lines = [f"{label}\t{text}" if header.startswith("label") else f"{text}\t{label}" for label, text in pairs]
        content = "\n".join([header, *lines]) + "\n"
        (data / "sst2" / f"{name}.tsv.gz").write_bytes(gzip.compress(content.encode()))
