"""nGraph-HE2: Tables 1 to 9, Figures 1 and 2, and Section 4.4."""

from __future__ import annotations

from scripts.papers.items import IN_KIND, NOT, Item, Line, Paper

_RELU, _SQUARE = (
    {"section": "nets", "net": "cryptonets-relu"},
    {"section": "nets", "net": "cryptonets-square"},
)


def _ablation(optimisation: str, what: str, paper: str) -> tuple[Line, ...]:
    where = {"section": "ablation", "optimisation": optimisation}
    return (
        Line(f"{what}: times faster", paper, "he-parts", where, "ratio", "{:.1f}"),
        Line(f"{what}: ms with it", "-", "he-parts", where, "on_milliseconds", "{:,.2f}"),
        Line(f"{what}: ms without", "-", "he-parts", where, "off_milliseconds", "{:,.2f}"),
    )


def _sockets(net: str, paper: str) -> tuple[Line, ...]:
    where, key, form = {"section": "sockets", "net": net}, "images_per_second", "{:,.0f}"
    return (
        Line("images a second over a socket", "-", "he-nets", where, key, form),
        Line("images a second over 10 Gb/s (paper: 9.4)", paper, "he-10gbit", where, key, form),
    )


def _kernel(kernel: str, what: str) -> Line:
    return Line(f"{what}, microseconds", "-", "he-parts", {"section": "kernels", "kernel": kernel}, "microseconds")


def _mobilenet(size: int, milliseconds: str, gigabytes: str, megabytes: str) -> tuple[Line, ...]:
    run, where = f"he-mobilenet-{size}", {"section": "mobilenet", "net": f"mobilenetv2-0.35-{size}"}
    what = f"MobileNetV2 0.35, {size} pixels"
    return (
        Line(f"{what}: ms an image", milliseconds, run, where, "milliseconds_per_image", "{:,.1f}"),
        Line(f"{what}: GB of memory, both sides", gigabytes, run, where, "peak_gigabytes", "{:,.1f}"),
        Line(f"{what}: MB up an image", megabytes, run, where, "kilobytes_up_per_image", "{:,.1f}", 1e-3),
        Line(f"{what}: MB down an image", "-", run, where, "kilobytes_down_per_image", "{:,.1f}", 1e-3),
        Line(f"{what}: largest error of a logit", "-", run, where, "largest_error", "{:.1e}"),
    )


PAPER = Paper(
    name="nGraph-HE2",
    source="Boemer, Costache, Cammarota, Wierzynski: nGraph-HE2 (WAHC 2019)",
    machine="Intel Xeon Platinum 8180, one thread for CryptoNets, 24 over a network, 56 for MobileNetV2",
    items=(
        Item(
            "Table 1",
            "lazy rescaling, on and off, by net",
            IN_KIND,
            "one linear layer of CryptoNets; rescaling each product of a whole net is not an option of the product",
            "encrypted.md",
            _ablation("lazy rescaling", "lazy rescaling, a layer", "8 (a net)"),
        ),
        Item(
            "Table 2",
            "scalar encoding against polynomials: time and memory",
            IN_KIND,
            "the first linear layer of CryptoNets in place of a table of degrees",
            "encrypted.md",
            _ablation("scalar encoding", "scalar encoding", "3.4 to 87.9"),
        ),
        Item(
            "Tables 3 and 4",
            "plaintext addition and multiplication by scalars",
            IN_KIND,
            "one exact product of matrices does both here, so it is timed as a whole",
            "encrypted.md",
            (
                *(
                    _kernel(name, what)
                    for name, what in (
                        ("encrypt", "a ciphertext encrypted"),
                        ("decrypt", "a ciphertext decrypted"),
                        ("transform", "a transform of one prime"),
                    )
                ),
                Line(
                    "thousand million multiplications and additions a second",
                    "-",
                    "he-parts",
                    {"section": "kernels", "kernel": "product"},
                    "g_multiply_adds_per_second",
                    "{:.1f}",
                ),
            ),
        ),
        Item(
            "Table 5",
            "CryptoNets with squares: time by optimisation and thread",
            IN_KIND,
            "one thread; rescaling is always lazy",
            "encrypted.md",
            (
                Line("ms an image, one thread", "7.23", "he-nets", _SQUARE, "milliseconds_per_image", "{:.3f}"),
                Line("accuracy, %", "98.95", "he-nets", _SQUARE, "accuracy", "{:.2f}", 100),
                *_sockets("cryptonets-square", "1,998"),
            ),
        ),
        Item(
            "Table 6",
            "CryptoNets with ReLUs at the client: real and complex packing",
            IN_KIND,
            "client-aided nets pack coefficients, twice as many values as real slots; packings are compared on a layer",
            "encrypted.md",
            (
                Line("ms an image, one thread", "1.44", "he-nets", _RELU, "milliseconds_per_image", "{:.3f}"),
                Line("accuracy, %", "98.62", "he-nets", _RELU, "accuracy", "{:.2f}", 100),
                Line("kB an image, up", "-", "he-nets", _RELU, "kilobytes_up_per_image", "{:.1f}"),
                Line("kB an image, down", "-", "he-nets", _RELU, "kilobytes_down_per_image", "{:.1f}"),
                *_sockets("cryptonets-relu", "2,959"),
                *_ablation("complex packing", "complex packing, a layer", "1.9 (2.72 to 1.44 ms, a net)"),
                *_ablation("coefficients packing", "packing of coefficients, a layer", "-"),
            ),
        ),
        Item(
            "Special values",
            "weights that are zero are left out",
            IN_KIND,
            "an optimisation of nGraph-HE, without a figure in the paper; 1 and -1 cost what other weights cost here",
            "encrypted.md",
            (
                *(
                    Line(f"{what}, {part}", "-", "he-sparse", {"net": net}, f"{key}milliseconds_per_image", "{:,.1f}")
                    for net, what in (
                        ("impala-cifar10", "Impala's net for CIFAR-10, no zeros"),
                        ("impala-cifar10-sparse", "the same, 90 % zeros"),
                    )
                    for part, key in (("ms an image", ""), ("of that the server's", "server_"))
                ),
                *(
                    Line(f"a layer, {zeros} zeros: ms", "-", "he-parts", {"kernel": kernel}, "milliseconds", "{:.1f}")
                    for zeros, kernel in (("no", "product"), ("90 %", "product, 90% zeros"))
                ),
            ),
        ),
        Item(
            "Table 7",
            "other systems on MNIST: LoLa, FHE-DiNN, CryptoNets, Chameleon, MiniONN, Gazelle",
            NOT,
            "the figures of systems that neither this page nor the paper has run stay in the paper",
        ),
        Item(
            "Tables 8 and 9",
            "MobileNetV2 0.35 on ImageNet, 96 to 224 pixels: time, memory, bytes, accuracy",
            IN_KIND,
            "random weights, as ImageNet's images are not at hand; 192 and 224 pixels need 22 and 30 GB",
            "encrypted.md",
            (
                *_mobilenet(96, "27", "60", "38.4 (both ways)"),
                *_mobilenet(128, "46", "-", "-"),
                *_mobilenet(160, "-", "-", "-"),
            ),
        ),
        Item(
            "Section 4.4",
            "weights encoded where they are used, for the primes that are left",
            IN_KIND,
            "one layer of polynomials, since scalar weights have nothing to encode",
            "encrypted.md",
            _ablation("just-in-time encoding", "encoding where it is used", "-"),
        ),
        Item("Figure 1", "time of MobileNetV2 against the size of images", IN_KIND, "the rows of Tables 8 and 9"),
        Item("Figure 2", "seconds against threads, 1 to 24", NOT, "the largest machine here has two cores"),
    ),
)
