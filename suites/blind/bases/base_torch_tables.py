
# --- an engine object per configuration, with masks, distances and rotary tables kept by size ----------------

import threading


class Tables:
    """Constants kept as NumPy arrays, so that neither gradients, nor devices, nor inference mode matter."""

    def __init__(self):
        self.lock = threading.Lock()
        self.kept = {}

    def get(self, key, build):
        with self.lock:
            if key not in self.kept:
                if len(self.kept) > 64:
                    self.kept.clear()
                value = build()
                value.setflags(write=False)
                self.kept[key] = value
            return self.kept[key]

    def angles(self, R, start, stop):
        def build():
            inverse = 10000.0 ** (-2.0 * np.arange(R // 2) / R)
            theta = np.arange(start, stop)[:, None] * inverse
            return np.stack([np.cos(theta), np.sin(theta)])

        return self.get(("angles", R, start, stop), build)

    def distances(self, start, stop):
        def build():
            return (np.arange(start, stop)[:, None] - np.arange(stop)[None, :]).astype(np.float64)

        return build() if stop - start > 512 else self.get(("distances", start, stop), build)

    def slopes(self, K):
        return self.get(("slopes", K), lambda: np.array(slopes(K)))


TABLES = Tables()


def constant(array, like):
    return torch.tensor(array, dtype=like.dtype, device=like.device)


class AttentionEngine:
    def __init__(self, weights, config):
        self.c = config
        self.w = weights
        K, R, D = config.heads, config.R, config.dim
        self.out = weights["W_Q"].reshape(K * R, D)
        self.into = weights["W_K"].reshape(K * R, D)
        self.d = weights["diagonal"].expand(K, D) if config.diagonal != "none" else None

    def split(self, flat):
        return flat.unflatten(-1, (self.c.heads, self.c.R)).transpose(1, 2)

    def rotated(self, heads, start, stop, back=False):
        if self.c.position != "rotary":
            return heads
        cos, sin = constant(TABLES.angles(self.c.R, start, stop), heads).unbind(0)
        a, b = heads.chunk(2, -1)
        if back:
            sin = -sin
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def keys(self, h, start=0):
        return self.rotated(self.split(h @ self.into.mT), start, start + h.shape[1])

    def logits(self, u, keys, h, start):
        stop = start + u.shape[1]
        q = self.rotated(self.split(u @ self.out.mT), start, stop)
        s = q @ keys.mT
        if self.d is not None:
            s = s + torch.einsum("bid,kd,bjd->bkij", u, self.d, h)
        s = s / self.c.temperature
        distance = constant(TABLES.distances(start, stop), s)
        if self.c.position == "alibi":
            s = s - constant(TABLES.slopes(self.c.heads), s)[:, None, None] * distance.clamp(min=0)
        if self.c.position == "self-cross":
            own = (distance == 0).to(s.dtype)
            s = s + self.w["to_self"][:, None, None] * own + self.w["to_others"][:, None, None] * (1 - own)
        return s.masked_fill(distance < 0, -math.inf)

    def direction(self, u, keys, h, start):
        a = self.logits(u, keys, h, start).softmax(-1)
        heads = self.rotated(a @ keys, start, start + u.shape[1], back=True)
        K, R, D = self.w["W_Q"].shape
        G = heads @ self.out.reshape(K, R, D)
        if self.d is not None:
            G = G + self.d[:, None] * (a @ h[:, None])
        return fold(G, self.w, self.c)

    def descend(self, x, keys, h, start=0):
        for _ in range(self.c.steps):
            x = x + self.c.step_size * precondition(self.direction(normalise(x, self.w, self.c), keys, h, start), self.w, self.c)
        return x


def attend(x, h, weights, config):
    engine = AttentionEngine(weights, config)
    return engine.descend(x, engine.keys(h), h)


def decode(h, weights, config):
    given, h, weights = h.dtype, widen(h), widen_all(weights)
    engine = AttentionEngine(weights, config)
    keys, answers = None, []
    for i, token in enumerate(h.split(1, 1)):
        fresh = engine.keys(token, i)
        keys = fresh if keys is None else torch.cat((keys, fresh), 2)
        answers.append(engine.descend(token, keys, h[:, : i + 1], i))
    return torch.cat(answers, 1).to(given)


def attention_energy(x, h, weights, config):
    given, x, h, weights = x.dtype, widen(x), widen(h), widen_all(weights)
    engine = AttentionEngine(weights, config)
    s = engine.logits(x, engine.keys(h), h, 0)
    return (-config.temperature * s.logsumexp(-1).sum(1)).to(given)
