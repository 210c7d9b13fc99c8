# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot_agent import nodeconfig
from aliquot_agent.nodepolicy import GpuPolicy, HealthPolicy, NodePolicy, Order, ResizePolicy, TaintEffect
from aliquot_api import modes
from aliquot_api.config import ComputePolicy, OverQuota, Sharing, TimeSlice
from aliquot_api.errors import InvalidInput
from aliquot_api.modes import Mode
from aliquot_api.quantity import MIB

HEAD = "apiVersion: aliquot.dev/v1alpha1\nkind: NodeConfig\n"
UUID = "GPU-1B2C3D4E-0000-1111-2222-333344445555"
FULL = f"""{HEAD}
defaults:
  reserve: 512Mi
  shares: 8
  order: packed
  overQuota: warn
  computePolicy: off
  tolerance: 128Mi
  respectBudgets: false
  health: {{effect: NoExecute, ignoreXids: [92]}}
  resize: {{grow: false, most: 16Gi}}
  gpus:
  - {{match: [0, "{UUID}"], sharing: exclusive}}
  - {{match: [3], publish: false, reserve: 0}}
nodes:
- names: [node-1, node-2]
  shares: 4
- labels: {{pool: big}}
  order: spread
  gpus:
  - {{match: [0], sharing: shim}}
namespaces:
  team-a: {{overQuota: evict, computePolicy: strict}}
  team-b: {{}}
"""


def resolve(text: str, *, node: str = "node-9", **labels: str) -> NodePolicy:
    return nodeconfig.decode(text).resolve(node=node, labels=labels)


def test_all_that_can_be_said_is_understood() -> None:
    policy = resolve(FULL)
    assert policy.defaults == GpuPolicy(reserve_bytes=512 * MIB, shares=8)
    assert policy.order is Order.PACKED
    assert (policy.tolerance_bytes, policy.respect_budgets) == (128 * MIB, False)
    assert policy.health.effect is TaintEffect.NO_EXECUTE
    assert policy.health.ignored_xids == HealthPolicy().ignored_xids | {92}
    assert policy.resize == ResizePolicy(grow=False, most_bytes=16384 * MIB)
    assert policy.gpu(uuid="GPU-x", index=0).sharing == modes.EXCLUSIVE
    assert policy.gpu(uuid=UUID.lower(), index=7).sharing == modes.EXCLUSIVE
    assert policy.gpu(uuid="GPU-x", index=3) == GpuPolicy(reserve_bytes=0, shares=8, publish=False)
    assert policy.over_quota("team-a") is OverQuota.EVICT
    assert policy.over_quota("team-b") is policy.over_quota("any") is OverQuota.WARN
    assert policy.compute_policy("team-a") is ComputePolicy.STRICT
    assert policy.compute_policy("team-b") is policy.compute_policy("any") is ComputePolicy.OFF


@pytest.mark.parametrize(
    ("word", "mode"),
    [
        ("mps", modes.MPS),
        ("timeslice", Mode(Sharing.TIMESLICE, TimeSlice.DEFAULT)),
        ("timeslice=short", Mode(Sharing.TIMESLICE, TimeSlice.SHORT)),
    ],
)
def test_a_gpu_has_a_way_of_sharing_with_its_length(word: str, mode: Mode) -> None:
    assert resolve(HEAD + f"defaults: {{sharing: {word}}}").defaults.sharing == mode


def test_entries_for_nodes_override_the_defaults_in_order() -> None:
    assert resolve(FULL, node="node-2").defaults.shares == 4
    both = resolve(FULL, node="node-2", pool="big")
    assert (both.defaults.shares, both.order) == (4, Order.SPREAD)
    assert both.gpu(uuid="GPU-x", index=0).sharing == modes.SHIM
    assert resolve(FULL, pool="small").order is Order.PACKED


def test_an_entry_with_names_and_labels_wants_both() -> None:
    text = f"{HEAD}nodes: [{{names: [a], labels: {{p: x}}, shares: 2}}]"
    assert [
        resolve(text, node=node, p=p).defaults.shares for node, p in (("a", "x"), ("a", "y"), ("b", "x"))
    ] == [
        2,
        16,
        16,
    ]


def test_what_is_not_said_is_as_the_agent_was_told() -> None:
    base = NodePolicy(defaults=GpuPolicy(reserve_bytes=5, shares=3))
    assert nodeconfig.decode(HEAD).resolve(node="n", labels={}, base=base) == base


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("", "want a mapping|apiVersion", id="empty"),
        pytest.param("a: [", "no YAML", id="broken"),
        pytest.param("a: &x [1]\nb: *x", "references", id="reference"),
        pytest.param(HEAD.replace("v1alpha1", "v2"), "apiVersion.*aliquot.dev/v1alpha1", id="version"),
        pytest.param(HEAD.replace("NodeConfig", "Node"), "kind.*NodeConfig", id="kind"),
        pytest.param(HEAD + "default: {}", "default:.*unknown field; want one of", id="field"),
        pytest.param(HEAD + "defaults: {shares: 8, shares: 9}", "stands twice", id="twice"),
        pytest.param(HEAD + "defaults: {Shares: 8}", r"defaults\.Shares: .*unknown", id="field of defaults"),
        pytest.param(HEAD + "defaults: {shares: 0}", r"defaults\.shares: .*1 to 1000", id="no shares"),
        pytest.param(HEAD + "defaults: {shares: true}", "1 to 1000", id="shares true"),
        pytest.param(HEAD + "defaults: {shares: '8'}", "1 to 1000", id="shares text"),
        pytest.param(HEAD + "defaults: {reserve: -1Mi}", "at least 0", id="negative"),
        pytest.param(HEAD + "defaults: {reserve: lots}", r"defaults\.reserve: .*quantity", id="no size"),
        pytest.param(HEAD + "defaults: {reserve: 1.5}", "quantity", id="a float"),
        pytest.param(HEAD + "defaults: {memoryFactor: 2}", "not oversubscribed", id="factor"),
        pytest.param(HEAD + "defaults: {sharing: timeslice=huge}", "timeslice=short", id="length"),
        pytest.param(HEAD + "defaults: {sharing: [mps]}", "timeslice=short", id="list of ways"),
        pytest.param(HEAD + "defaults: {sharing: off}", "exclusive.*publish: false", id="yaml's off"),
        pytest.param(HEAD + "defaults: {order: random}", "packed", id="order"),
        pytest.param(HEAD + "defaults: {overQuota: punish}", "evict", id="policy"),
        pytest.param(HEAD + "defaults: {computePolicy: hard}", "off, fair, strict", id="compute policy"),
        pytest.param(
            HEAD + "namespaces: {a: {computePolicy: true}}", r"namespaces\[a\]\.computePolicy", id="yaml's on"
        ),
        pytest.param(HEAD + "defaults: {health: {effect: None}}", "NoExecute", id="effect"),
        pytest.param(HEAD + "defaults: {health: {ignoreXids: [x]}}", r"ignoreXids\[0\]", id="xid"),
        pytest.param(HEAD + "defaults: {resize: {grow: 1}}", "true or false", id="grow"),
        pytest.param(HEAD + "defaults: {gpus: [{shares: 2}]}", r"gpus\[0\]\.match", id="gpu without match"),
        pytest.param(HEAD + "defaults: {gpus: [{match: [gpu0]}]}", "UUID", id="gpu by what"),
        pytest.param(HEAD + "defaults: {gpus: [{match: [true]}]}", "UUID", id="gpu true"),
        pytest.param(
            HEAD + "defaults: {gpus: [{match: [0], order: spread}]}", "unknown", id="order of a gpu"
        ),
        pytest.param(HEAD + "defaults: {gpus: {match: [0]}}", "want a list", id="gpus no list"),
        pytest.param(HEAD + "nodes: [{shares: 2}]", r"nodes\[0\].*names or labels", id="which nodes"),
        pytest.param(HEAD + "nodes: [{names: [1], shares: 2}]", "put it in quotes", id="name a number"),
        pytest.param(HEAD + "nodes: [{labels: {a: true}}]", "put it in quotes", id="label true"),
        pytest.param(
            HEAD + "namespaces: {a: {policy: kill}}", r"namespaces\[a\]\.policy", id="namespace field"
        ),
        pytest.param(HEAD + "namespaces: [a]", "want a mapping", id="namespaces list"),
        pytest.param(HEAD + "1: 2", "is no text", id="key a number"),
        pytest.param("[" * 5000, "no YAML", id="deep"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_place(text: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=f"(?s){says}"):
        nodeconfig.decode(text)


@given(st.text(max_size=200))
def test_any_text_is_understood_or_refused(text: str) -> None:
    for document in (text, HEAD + text, f"{HEAD}defaults: {text}"):
        try:
            nodeconfig.decode(document).resolve(node="n", labels={})
        except InvalidInput:
            continue
