"""Golden vectors of chapter 08, C6 and C7: `python generate_outer.py > outer.json` in protocol/vectors.

Weights, means of fp32 shares and several outer steps of every outer optimizer, all as bit patterns of fp32. Every
operation is computed in float64 and rounded to fp32, which is one IEEE 754 fp32 operation for +, -, *, / and sqrt.
"""

import json
import math
import random
import struct
import sys

VALUES = 9
DIRECTION_VALUES = 256
STEPS = 5
SETTINGS = (
    ("sgd", {"lr": 1.0}),
    ("sgd", {"lr": 0.7}),
    ("heavy_ball", {"lr": 0.4, "momentum": 0.9}),
    ("nesterov", {"lr": 0.7, "momentum": 0.9}),
    ("nesterov", {"lr": 1.0, "momentum": 0.5}),
    ("adam", {"lr": 0.01, "momentum": 0.9, "beta2": 0.95, "eps": 1e-8}),
)


def fp32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def bits(values):
    return struct.pack(f"<{len(values)}f", *values).hex()


def mul(a, b):
    return fp32(a * b)


def add(a, b):
    return fp32(a + b)


def power(base, exponent):
    """Float64, by squaring from the lowest bit (C7)."""
    result, factor = 1.0, base
    while exponent:
        if exponent & 1:
            result *= factor
        factor *= factor
        exponent >>= 1
    return result


def step(name, options, x, slots, g, index):
    """One value: (new x, new slots)."""
    lr, momentum = fp32(options["lr"]), options.get("momentum", 0.0)
    if name == "sgd":
        return fp32(x - mul(g, lr)), []
    if name == "adam":
        beta, beta2 = momentum, options["beta2"]
        m = add(mul(slots[0], fp32(beta)), mul(g, fp32(1.0 - beta)))
        v = add(mul(slots[1], fp32(beta2)), mul(mul(g, g), fp32(1.0 - beta2)))
        divisor = fp32(math.sqrt(mul(v, fp32(1.0 / (1.0 - power(beta2, index + 1))))))
        divisor = add(divisor, fp32(options["eps"]))
        update = mul(m, fp32(1.0 / (1.0 - power(beta, index + 1))))
        return fp32(x - mul(fp32(update / divisor), lr)), [m, v]
    m = add(mul(slots[0], fp32(momentum)), g)
    if name == "heavy_ball":
        return fp32(x - mul(m, lr)), [m]
    return fp32(x - mul(add(mul(m, fp32(momentum)), g), lr)), [m]


def series(name, options, rng):
    x = [fp32(rng.gauss(0, 1)) for _ in range(VALUES)]
    slots = [[0.0] * {"sgd": 0, "adam": 2}.get(name, 1) for _ in range(VALUES)]
    row = {"optimizer": name, **options, "x": bits(x), "steps": []}
    for index in range(STEPS):
        g = [fp32(rng.gauss(0, 1) * 10.0 ** rng.randint(-6, 1)) for _ in range(VALUES)]
        moved = [step(name, options, *given, index) for given in zip(x, slots, g, strict=True)]
        x, slots = [new for new, _ in moved], [kept for _, kept in moved]
        row["steps"].append({"g": bits(g), "x": bits(x), "slots": [bits(slot) for slot in zip(*slots, strict=True)]})
    return row


def mean(tokens, rng, late=(), missing=0, ramps=()):
    """C6 with fp32 shares; `late`: age factors of X2, `missing`: contributors that the round is short of (X9), `ramps`:
    parts of the weights in 64ths (M11)."""
    whole = [count for count, ramp in zip(tokens, ramps or [64] * len(tokens), strict=True) if ramp == 64]
    median = lower_median(whole)
    capped = [
        min(count, 2 * median) if ramp == 64 else max(1, min(count, median) * ramp // 64)
        for count, ramp in zip(tokens, ramps or [64] * len(tokens), strict=True)
    ]
    total = sum(capped)
    part = len(whole) / (len(whole) + missing)
    weights = [
        fp32(count / total * (part * age)) for count, age in zip(capped, late or [1.0] * len(tokens), strict=True)
    ]
    shares = [[fp32(rng.gauss(0, 1)) for _ in range(VALUES)] for _ in tokens]
    shares[-1][-1] = fp32(2.0**64)
    shares[0][-2] = -fp32(2.0**64)
    out = [mul(value, weights[0]) for value in shares[0]]
    for weight, share in zip(weights[1:], shares[1:], strict=True):
        out = [add(value, mul(other, weight)) for value, other in zip(out, share, strict=True)]
    residual = [fp32(rng.gauss(0, 1e-3)) for _ in range(VALUES)]
    with_residual = [max(-(2.0**64), min(2.0**64, add(a, b))) for a, b in zip(out, residual, strict=True)]
    return {
        "tokens": tokens,
        "late": list(late),
        "missing": missing,
        "ramps": list(ramps),
        "weights": bits(weights),
        "shares": [bits(share) for share in shares],
        "mean": bits(out),
        "residual": bits(residual),
        "encoded_values": bits(with_residual),
    }


def lower_median(values):
    return sorted(values)[(len(values) - 1) // 2]


def bf16_down(value):
    """Towards zero."""
    (pattern,) = struct.unpack("<I", struct.pack("<f", value))
    cut = struct.unpack("<f", struct.pack("<I", pattern & 0xFFFF0000))[0]
    if cut > value:  # fp32 rounded up over a border of bf16
        cut = struct.unpack("<f", struct.pack("<I", (pattern & 0xFFFF0000) - 0x10000))[0]
    return cut


def square_sum(values):
    parts = [value * value for value in values]
    while len(parts) > 1:
        half = len(parts) // 2
        kept = parts[: len(parts) - half]
        parts = [a + b for a, b in zip(kept[:half], parts[len(parts) - half :], strict=True)] + kept[half:]
    return parts[0]


def upper_median(values):
    return sorted(values)[len(values) // 2]


def contrary(shares):
    """Positions of those that point against the others (C9)."""
    count = len(shares[0])
    codes = []
    for share in shares:
        size = math.sqrt(square_sum(share))
        scale = fp32(min(3 * math.sqrt(count) / size, 2.0**96)) if size else 0.0
        codes.append([int(max(-15.0, min(15.0, mul(value, scale)))) for value in share])
    dots = [[sum(a * b for a, b in zip(one, other, strict=True)) for other in codes] for one in codes]
    places = range(len(shares))

    def cosine(i, j):
        return dots[i][j] / math.sqrt(dots[i][i] * dots[j][j]) if dots[i][i] and dots[j][j] else 0.0

    typical = [upper_median([cosine(i, j) for j in places if j != i]) for i in places]
    limit = -max(lower_median(typical) * 0.5, 3 / math.sqrt(count))
    found = [i for i in places if typical[i] < limit]
    return found if 2 * len(found) < len(shares) else []


def direction(shares, rng):
    """C9 for shares = (size, agreement with a common direction)."""
    common = [rng.gauss(0, 1) for _ in range(DIRECTION_VALUES)]
    made = [[fp32(size * (part * c + rng.gauss(0, 1))) for c in common] for size, part in shares]
    return {"shares": [bits(share) for share in made], "contrary": contrary(made)}


def clipping(sizes, recent, kappa, rng, *, is_centered=False):
    """C9 with fp32 shares whose norms are about `sizes`."""
    shares = [[fp32(rng.gauss(0, 1) * size) for _ in range(VALUES)] for size in sizes]
    center = [fp32(rng.gauss(0, 1)) for _ in range(VALUES)] if is_centered else [0.0] * VALUES
    distances = [math.sqrt(square_sum([fp32(a - b) for a, b in zip(share, center, strict=True)])) for share in shares]
    reference = lower_median(distances)
    if len(shares) == 2 and recent:
        reference = max(reference, lower_median(recent))
    limit = kappa * reference
    factors = [1.0 if d <= limit or len(shares) == 1 else bf16_down(limit / d) for d in distances]
    counted = [d * f for d, f in zip(distances, factors, strict=True)]
    norm = bf16_down(sum(counted) * 0.5 if len(shares) == 2 else reference)
    moved = []
    for share, factor in zip(shares, factors, strict=True):
        pairs = zip(share, center, strict=True)
        scaled = [add(mul(fp32(x - v), factor), v) if is_centered else mul(x, factor) for x, v in pairs]
        moved.append(share if factor == 1 else scaled)
    record = [norm, *factors] + [1.0] * (8 - len(factors))
    return {
        "kappa": kappa,
        "recent": recent,
        "center": bits(center) if is_centered else "",
        "shares": [bits(share) for share in shares],
        "factors": bits(factors),
        "counted": [bits(values) for values in moved],
        "places": 8,
        "record": b"".join(struct.pack("<f", number)[2:] for number in record).hex(),
    }


def turnout(rounds, rng):
    """X9: a chain whose entries have so many contributors, and what each of them is short of."""
    counts = [rng.randint(1, 9) for _ in range(24)]
    short_of = []
    for index, present in enumerate(counts):
        before = counts[max(0, index - rounds) : index]
        short_of.append(max([0, *(count - present for count in before)]))
    return {"participation_rounds": rounds, "contributors": counts, "missing": short_of}


def main():
    rng = random.Random(20_261_121)
    steps = [series(name, options, rng) for name, options in SETTINGS]
    token_counts = ([1], [6400, 6400], [6400, 6400, 3200], [1, 2**48], [7, 11, 13, 17, 19])
    means = [mean(t, rng) for t in token_counts]
    means += [mean([6400], rng, missing=3), mean([7, 11], rng, missing=1), mean([7, 11, 13], rng, [1.0, 0.25, 0.7], 4)]
    turnouts = [turnout(rounds, rng) for rounds in (0, 1, 3, 8)]
    means += [mean([6400, 6400, 57_600], rng), mean([100, 900], rng), mean([900, 100, 900, 100, 900, 100], rng)]
    clips = [
        clipping([1.0], [], 2.5, rng),
        clipping([1.0, 1e6], [], 2.5, rng),
        clipping([1.0, 4.0], [2.0] * 8, 2.5, rng),
        clipping([1.0, 1e3], [8.0, 2.0, 4.0], 2.5, rng),
        clipping([1.0, 1.1, 0.9, 1e6], [], 2.5, rng),
        clipping([1.0, 1.1, 0.9, 30.0, 1e12], [], 1.0, rng),
        clipping([1e-30, 1e-9, 1e9], [], 2.5, rng),
        clipping([1.0, 0.5, 40.0], [], 2.5, rng, is_centered=True),
        clipping([1.0, 40.0], [1.0], 1.5, rng, is_centered=True),
        clipping([0.0, 0.0, 1.0], [], 2.5, rng),
    ]
    means += [mean([6400, 6400], rng, ramps=[64, 3]), mean([6400, 57_600], rng, ramps=[64, 32])]
    means += [mean([1, 900, 100, 100], rng, ramps=[64, 7, 64, 64]), mean([5, 1], rng, ramps=[64, 1])]
    means += [mean([100, 100, 9], rng, [1.0, 1.0, 0.5], 1, [64, 64, 60])]
    document = {"chapter": "08-compression", "steps": steps, "means": means, "turnouts": turnouts, "clips": clips}
    document["directions"] = [
        direction([(1.0, 1.0), (1.0, -1.0), (1.0, 1.0), (1.0, 1.0)], rng),
        direction([(1.0, 1.0), (1.0, 1.0), (1e6, -1.0)], rng),
        direction([(1.0, 2.0), (1.0, 0.3), (1.0, -2.0)], rng),
        direction([(1.0, 2.0), (1e-20, -2.0), (2.0, 1.0), (1.0, 1.5), (0.0, 0.0), (1.0, 1.0)], rng),
        direction([(1.0, 1.0), (1.0, -1.0), (1.0, 1.0), (1.0, -1.0)], rng),
        direction([(1.0, 0.0)] * 5, rng),
        direction([(1.0, 1.0), (1.0, -0.05), (1.0, 1.0), (1.0, 1.0)], rng),
        direction([(1e-44, 1.0), (1.0, 1.0), (1.0, -1.0), (1e18, 1.0), (3.0, 1.0)], rng),
        direction([(1.0, 2.0), (1.0, 2.0), (1.0, 2.0), (3.0, 2.0), (1.0, 2.0), (9.0, -2.0), (1.0, -2.0)], rng),
    ]
    json.dump(document, sys.stdout, indent=0)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
