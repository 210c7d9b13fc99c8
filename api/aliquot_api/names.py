# SPDX-License-Identifier: Apache-2.0
"""Every name that more than one part of Aliquot, or a user, spells."""

from typing import Final

DRIVER: Final = "gpu.aliquot.dev"
"""DRA driver name; also the attribute domain of our devices."""
DEVICE_CLASS: Final = "gpu.aliquot.dev"
"""DeviceClass of shareable GPUs."""
MIG_DEVICE_CLASS: Final = "mig.aliquot.dev"
"""DeviceClass of MIG partitions."""
RESOURCE_GROUP: Final = "resource.k8s.io"
RESOURCE_VERSION: Final = "v1"
CONSUMABLE_CAPACITY_GATE: Final = "DRAConsumableCapacity"
"""Feature gate that shares rest on (KEP-5075): beta from Kubernetes 1.36."""

INJECT_LABEL: Final = "aliquot.dev/inject"
"""Namespace label (value INJECT_ENABLED) that opts in; pod label (INJECT_DISABLED) that opts out."""
INJECT_ENABLED: Final = "enabled"
INJECT_DISABLED: Final = "disabled"

MANAGED_LABEL: Final = "aliquot.dev/managed"
"""On ResourceClaimTemplates and claims that the webhook made, value "true"."""
KEEP_UNTIL_ANNOTATION: Final = "aliquot.dev/keep-until"
"""On our templates: RFC 3339 UTC time before which it must not be deleted, used or not."""
JUDGED_ANNOTATION: Final = "aliquot.dev/judged-with-pod"
"""On claims of pods that were judged with all they ask for, so that nobody judges the claims again. Only the
webhook may write templates of such claims."""
CONFIG_GROUP: Final = "aliquot.dev"
"""Group of our own kinds: AliquotBudget, and AliquotLedger in which webhooks count."""
CONFIG_VERSION: Final = "v1alpha1"

REQUEST_ANNOTATION: Final = "aliquot.dev/original-request"
"""On converted pods: JSON of the handled resources taken out, by container."""

ANNOTATION_MEMORY_LIMIT: Final = "aliquot.dev/gpu-memory-limit"
"""A quantity for every GPU container and each of its cards, or `container=quantity,…`; also live resize."""
ANNOTATION_CORES: Final = "aliquot.dev/gpu-cores"
ANNOTATION_GPU_TYPES: Final = "aliquot.dev/gpu-types"
ANNOTATION_SAME_GPU: Final = "aliquot.dev/same-gpu"
ANNOTATION_SPREAD_GPUS: Final = "aliquot.dev/spread-gpus"
ANNOTATION_NUMA_ALIGN: Final = "aliquot.dev/numa-align"
ANNOTATION_PCIE_ALIGN: Final = "aliquot.dev/pcie-align"
ANNOTATION_SHARING: Final = "aliquot.dev/sharing"
ANNOTATION_COMPUTE_POLICY: Final = "aliquot.dev/compute-policy"

POD_CLAIM_NAME: Final = "aliquot"
"""Entry in pod.spec.resourceClaims that the webhook adds."""

RESOURCE_COUNT: Final = "nvidia.com/vgpu"
RESOURCE_MEMORY: Final = "nvidia.com/gpumem"
"""Whole MiB per GPU."""
RESOURCE_MEMORY_PERCENT: Final = "nvidia.com/gpumem-percentage"
RESOURCE_CORES: Final = "nvidia.com/gpucores"
"""Percent of one GPU's compute, 0-100."""
RESOURCE_PRIORITY: Final = "nvidia.com/priority"
"""0 is high, 1 is low."""

CAPACITY_MEMORY: Final = "memory"
"""Bytes. Capacity names are always unqualified: the scheduler compares them as text."""
CAPACITY_CORES: Final = "cores"
CAPACITY_SHARES: Final = "shares"

CDI_KIND: Final = "gpu.aliquot.dev/share"
"""CDI kind of our per-share devices; device name <claimUID>-<share>."""

PLUGIN_DIR: Final = "/var/lib/kubelet/plugins/gpu.aliquot.dev"
PLUGIN_REGISTRY_DIR: Final = "/var/lib/kubelet/plugins_registry"
DEVICE_PLUGINS_DIR: Final = "/var/lib/kubelet/device-plugins"
CDI_DIR: Final = "/var/run/cdi"
HOST_STATE_DIR: Final = "/var/lib/aliquot"
"""Host directory: lib/<version>/libaliquot.so."""
HOST_RUN_DIR: Final = "/run/aliquot-agent"
"""Host directory that a reboot empties: claims/<claimUID>/<share>/{quota,ledger}."""

CONTAINER_LIBRARY: Final = "/run/aliquot/lib/libaliquot.so"
CONTAINER_SHARES_DIR: Final = "/run/aliquot/shares"
CONTAINER_PRELOAD: Final = "/etc/ld.so.preload"
CONTAINER_MPS_DIR: Final = "/run/aliquot/mps"
"""Pipe directory of the MPS daemon of the container's GPU."""
HOST_MPS_MEMORY: Final = "/dev/shm/aliquot-mps"
"""Host directory that is /dev/shm of MPS daemons and of their clients."""

METRICS_PREFIX: Final = "aliquot_"
