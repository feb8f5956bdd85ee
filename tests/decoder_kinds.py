"""Small decoders with a past, named as exporters of language models name them. Adds them to ``KINDS``."""

from __future__ import annotations

import numpy as np

from model_kinds import WIDTH, Kind, kind, numbers, read, renamed, square


@kind
def decoder() -> Kind:
    """One attention layer with a past: names and dimensions as exporters of language models write them."""
    text = """g (int64[batch_size, sequence_length] input_ids, int64[batch_size, total_sequence_length] attention_mask,
        int64[batch_size, sequence_length] position_ids,
        float[batch_size, 1, past_sequence_length, 16] "past_key_values.0.key",
        float[batch_size, 1, past_sequence_length, 16] "past_key_values.0.value")
        => (float[batch_size, sequence_length, 32] logits,
            float[batch_size, 1, total_sequence_length, 16] "present.0.key",
            float[batch_size, 1, total_sequence_length, 16] "present.0.value")
        <float scale = {0.25}, float one = {1}, float low = {-3e38}, int64[1] head = {1}, int64[2] middle = {1, 2}> {
        e = Gather(table, input_ids)  p = Gather(positions, position_ids)  h = Add(e, p)
        q = MatMul(h, wq)  k = MatMul(h, wk)  v = MatMul(h, wv)
        qh = Unsqueeze(q, head)  kh = Unsqueeze(k, head)  vh = Unsqueeze(v, head)
        "present.0.key" = Concat <axis = 2> ("past_key_values.0.key", kh)
        "present.0.value" = Concat <axis = 2> ("past_key_values.0.value", vh)
        kt = Transpose <perm = [0, 1, 3, 2]> ("present.0.key")  s = MatMul(qh, kt)  ss = Mul(s, scale)
        mf = Cast <to = 1> (attention_mask)  hidden = Sub(one, mf)  m2 = Mul(hidden, low)  m4 = Unsqueeze(m2, middle)
        masked = Add(ss, m4)  a = Softmax(masked)  c = MatMul(a, vh0)  o = Squeeze(c, head)  logits = MatMul(o, wo) }"""
    quoted = {f"past_key_values.0.{p}": f"past_{p}" for p in ("key", "value")} | {
        f"present.0.{p}": f"present_{p}" for p in ("key", "value")
    }
    for name, plain in quoted.items():
        text = text.replace(f'"{name}"', plain)
    projections = {f"w{letter}": square(number) for number, letter in enumerate("qkv")}
    tables = {"table": numbers(32, WIDTH), "positions": numbers(40, WIDTH), "wo": numbers(WIDTH, 32)}
    model = read(text.replace("vh0", "present_value"), projections | tables)
    renamed(model, {plain: name for name, plain in quoted.items()})
    past = {f"past_key_values.0.{p}": numbers(1, 1, 7, 16) for p in ("key", "value")}
    feed = {"input_ids": np.array([[3]]), "attention_mask": np.ones((1, 8), np.int64), "position_ids": np.array([[7]])}
    return Kind(model, feed | past)


@kind
def decoder_with_grouped_queries() -> Kind:
    text = """g (int64[batch_size, sequence_length] input_ids, int64[batch_size, total_sequence_length] attention_mask,
        float[batch_size, 1, past_sequence_length, 16] past_key,
        float[batch_size, 1, past_sequence_length, 16] past_value)
        => (float[batch_size, sequence_length, 32] logits, float[batch_size, 1, total_sequence_length, 16] present_key,
            float[batch_size, 1, total_sequence_length, 16] present_value)
        <int64[1] last = {1}, int64 one = {1}, int64 first = {1}> {
        h = Gather(table, input_ids)  q = MatMul(h, wq)  k = MatMul(h, wk)  v = MatMul(h, wv)
        kept = ReduceSum <keepdims = 0> (attention_mask, last)  before = Sub(kept, one)
        lengths = Cast <to = 6> (before)  sizes = Shape(attention_mask)
        size = Gather(sizes, first)  total = Cast <to = 6> (size)
        c, present_key, present_value = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 1>
            (q, k, v, past_key, past_value, lengths, total)
        logits = MatMul(c, wo) }"""
    weights = {"wq": numbers(WIDTH, 2 * WIDTH), "wk": square(1), "wv": square(2), "wo": numbers(2 * WIDTH, 32)}
    model = read(text, {**weights, "table": numbers(32, WIDTH)})
    past = {f"past_{p}": numbers(1, 1, 7, 16) for p in ("key", "value")}
    return Kind(model, {"input_ids": np.array([[3]]), "attention_mask": np.ones((1, 8), np.int64), **past})
