"""The model of a published run: the sizes of its row, and what they leave out.

A model of the catalog fills what a row does not state. Where the catalog has none, a count of
parameters decides between the usual shapes (gated or not, tied or not), or gives the width itself.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

from computeflow.catalog import Catalog
from computeflow.catalog.models import Attention, Block, Dense, Experts, Model, printed_range
from computeflow.catalog.parameters import count_parameters
from computeflow.errors import InputError
from computeflow.files.names import shown
from computeflow.prediction.table_cells import Row, number, whole

SHAPES = ("layers", "hidden", "heads", "vocab")
_GATED = re.compile(r"llama|qwen|mistral|mixtral|gemma|deepseek|internlm|olmo|phi|yi-|baichuan|glm")
"""Families whose feed-forward parts are gated, by their published configurations."""
_WIDTHS = re.compile(r"(\d+)")


def run_model(row: Row, catalog: Catalog) -> tuple[Model, tuple[str, ...]]:
    """The model, and what of it had to be worked out ("experts", "width")."""
    name = row.get("model_name", "")
    known = catalog.models.get(name)
    if unsaid := [column for column in SHAPES if not row.get(column)]:
        if known is None:
            raise InputError(
                f"not stated: {', '.join(unsaid)}; model '{shown(name)}' is not in the catalog"
            )
        return known, ()
    if row.get("moe_experts"):
        return (_with_layers(known, row), ()) if known else (_with_experts(row), ("experts",))
    if known is not None and _is_shape_of(known, row):
        return replace(known, vocab=whole(row, "vocab")), ()
    return _dense_model(row, known)


def _with_layers(known: Model, row: Row) -> Model:
    """The catalog's model with as many layers as the row says: proxies of fewer are common."""
    missing = known.layers - whole(row, "layers")
    most = max(range(len(known.blocks)), key=lambda i: known.blocks[i].count)
    if missing == 0 or known.blocks[most].count <= missing:
        return known
    blocks = list(known.blocks)
    blocks[most] = replace(blocks[most], count=blocks[most].count - missing)
    return replace(known, blocks=tuple(blocks))


def _is_shape_of(known: Model, row: Row) -> bool:
    """Whether a row's sizes are those of the catalog's model, but for padding of the vocabulary."""
    block = known.blocks[0]
    if len(known.blocks) > 1 or block.attention is None or block.dense is None:
        return False
    return (
        known.hidden == whole(row, "hidden")
        and known.layers == whole(row, "layers")
        and block.attention.heads == whole(row, "heads")
        and block.attention.kv_heads == whole(row, "kv_heads", block.attention.kv_heads)
        and block.dense.width == _width(row, block.dense.width)
    )


def _width(row: Row, default: int) -> int:
    """The feed-forward width; with experts the last one that is stated ("10944 dense/1408 moe")."""
    stated = _WIDTHS.findall(row.get("ffn_hidden") or "")
    return whole({"ffn_hidden": stated[-1]}, "ffn_hidden") if stated else default


def _model(row: Row, family: str, block: Block, *, tied: bool = False) -> Model:
    return Model(
        name=row.get("model_name") or "unnamed",
        family=family,
        source=row.get("source_path") or "the row",
        as_of=row.get("year") or "2026",
        hidden=whole(row, "hidden"),
        vocab=whole(row, "vocab"),
        blocks=(block,),
        tied=tied,
    )


def _attention(row: Row, known: Model | None) -> Attention:
    hidden, heads = whole(row, "hidden"), whole(row, "heads")
    usual = known.blocks[0].attention if known else None
    return Attention(
        heads=heads,
        kv_heads=whole(row, "kv_heads", heads),
        head_dim=usual.head_dim if usual and usual.heads == heads else hidden // heads,
    )


def _dense_model(row: Row, known: Model | None) -> tuple[Model, tuple[str, ...]]:
    attention, count = _attention(row, known), whole(row, "layers")
    family = known.family if known else "transformer"
    usual = known.blocks[0].dense if known else None
    if usual is not None and known is not None:
        dense = Dense(width=_width(row, usual.width), gated=usual.gated)
        block = Block(count=count, attention=attention, dense=dense)
        return _model(row, family, block, tied=known.tied), ()
    models = [
        _model(row, family, Block(count=count, attention=attention, dense=dense), tied=tied)
        for dense, tied in itertools.product(_usual_parts(row), (False, True))
    ]
    unsaid = () if row.get("ffn_hidden") else ("width",)
    if not row.get("params_b"):
        return models[0], unsaid
    stated = 1e9 * number(row, "params_b")
    best = min(models, key=lambda model: abs(count_parameters(model).total - stated))
    low, high = printed_range(f"{number(row, 'params_b'):g}B")
    if unsaid and not low <= count_parameters(best).total <= high:
        best = _with_width(models[0], stated)
    return best, unsaid


def _usual_parts(row: Row) -> list[Dense]:
    """Feed-forward parts that a row may mean, the most usual first.

    Gated ones are 8/3 of the hidden size in multiples of 256 wide (arXiv:2302.13971), others four
    times.
    """
    hidden = whole(row, "hidden")
    gated = _width(row, 256 * -(-8 * hidden // (3 * 256)))
    plain = _width(row, 4 * hidden)
    parts = [Dense(width=gated, gated=True), Dense(width=plain, gated=False)]
    gated_name = _GATED.search(row.get("model_name", "").lower())
    return parts if gated_name or gated != 4 * hidden else parts[::-1]


def _with_width(model: Model, parameters: float) -> Model:
    """The gated model that has so many parameters."""
    block = replace(model.blocks[0], dense=Dense(width=1, gated=True))
    bare = count_parameters(replace(model, blocks=(block,))).total
    width = round((parameters - bare) / (3 * model.hidden * block.count)) + 1
    if width < 1:
        raise InputError(f"params_b = {parameters / 1e9:g}: less than the other sizes make")
    return replace(model, blocks=(replace(block, dense=Dense(width=width, gated=True)),))


def _with_experts(row: Row) -> Model:
    """A model of equal blocks with gated experts.

    The width is the one stated, or what the parameters that are not active leave for the experts
    that a token does not pass; what then is active beyond them is a shared expert.
    """
    hidden, layers = whole(row, "hidden"), whole(row, "layers")
    count, top_k = whole(row, "moe_experts"), whole(row, "moe_topk", 2)
    unit = 3 * hidden * layers
    width = _width(row, 0)
    if row.get("params_b") and row.get("active_params_b") and count > top_k:
        idle = 1e9 * (number(row, "params_b") - number(row, "active_params_b"))
        by_count = round(idle / (unit * (count - top_k)))
        if not width or not 0.8 < width / max(by_count, 1) < 1.25:
            width = by_count
    if width < 1:
        raise InputError("not stated: ffn_hidden, or params_b and active_params_b of the experts")
    experts = Experts(count=count, top_k=top_k, width=width)
    block = Block(count=layers, attention=_attention(row, None), experts=experts)
    model = _model(row, "transformer", block)
    if not row.get("active_params_b"):
        return model
    beyond = 1e9 * number(row, "active_params_b") - count_parameters(model).active
    shared = round(beyond / unit) if beyond > 0.1e9 * number(row, "active_params_b") else 0
    return replace(model, blocks=(replace(block, experts=replace(experts, shared_width=shared)),))
