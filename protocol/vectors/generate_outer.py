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


def mean(tokens, rng, late=(), missing=0):
    """C6 with fp32 shares; `late`: age factors of X2, `missing`: contributors that the round is short of (X9)."""
    total = sum(tokens)
    part = len(tokens) / (len(tokens) + missing)
    weights = [
        fp32(count / total * (part * age)) for count, age in zip(tokens, late or [1.0] * len(tokens), strict=True)
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
        "weights": bits(weights),
        "shares": [bits(share) for share in shares],
        "mean": bits(out),
        "residual": bits(residual),
        "encoded_values": bits(with_residual),
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
    document = {"chapter": "08-compression", "steps": steps, "means": means, "turnouts": turnouts}
    json.dump(document, sys.stdout, indent=0)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
