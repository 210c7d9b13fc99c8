# SPDX-License-Identifier: Apache-2.0
"""The DRA service that kubelet calls: one answer per claim, one claim's failure never another's."""

import logging
import time
from collections.abc import Callable
from typing import Protocol

import grpc

from aliquot_agent.claims import ClaimRef, PreparedDevice
from aliquot_agent.errors import Refused
from aliquot_agent.kubeletapi.dra.v1 import dra_pb2, dra_pb2_grpc

logger = logging.getLogger(__name__)


class Preparer(Protocol):
    """What the service asks of claims.Claims."""

    def prepare(self, ref: ClaimRef, *, waited_s: float) -> tuple[PreparedDevice, ...]:
        """Makes a claim ready; raises Refused, OSError."""

    def unprepare(self, uid: str) -> None:
        """Undoes it; raises OSError."""


class DraPlugin(dra_pb2_grpc.DRAPluginServicer):
    """Translates between kubelet's messages and `claims`."""

    def __init__(
        self,
        *,
        claims: Preparer,
        prepared: Callable[[float], None],
        unprepared: Callable[[float], None],
        failed: Callable[[str], None],
    ) -> None:
        self._claims = claims
        self._failed = failed
        self._prepared = prepared
        self._unprepared = unprepared

    def NodePrepareResources(
        self, request: dra_pb2.NodePrepareResourcesRequest, context: grpc.ServicerContext
    ) -> dra_pb2.NodePrepareResourcesResponse:
        """Prepares each claim; all of them share the time that kubelet gives a call."""
        response, begun = dra_pb2.NodePrepareResourcesResponse(), time.monotonic()
        for claim in request.claims:
            response.claims[claim.uid].CopyFrom(self._prepare(claim, begun=begun))
        return response

    def NodeUnprepareResources(
        self, request: dra_pb2.NodeUnprepareResourcesRequest, context: grpc.ServicerContext
    ) -> dra_pb2.NodeUnprepareResourcesResponse:
        """Unprepares each claim."""
        response = dra_pb2.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            response.claims[claim.uid].CopyFrom(self._unprepare(claim))
        return response

    def _prepare(self, claim: dra_pb2.Claim, *, begun: float) -> dra_pb2.NodePrepareResourceResponse:
        started = time.monotonic()
        ref = ClaimRef(namespace=claim.namespace, name=claim.name, uid=claim.uid)
        extra = {"claim_uid": claim.uid, "claim": f"{claim.namespace}/{claim.name}"}
        try:
            devices = self._claims.prepare(ref, waited_s=started - begun)
        except Exception as error:
            known = isinstance(error, Refused | OSError | ValueError)
            self._failed("prepare")
            logger.error("prepare failed", extra={**extra, "error": str(error)}, exc_info=not known)
            return dra_pb2.NodePrepareResourceResponse(error=str(error) or type(error).__name__)
        took_s = time.monotonic() - started
        self._prepared(took_s)
        logger.info("prepared claim", extra={**extra, "shares": len(devices), "ms": round(took_s * 1000, 1)})
        return dra_pb2.NodePrepareResourceResponse(
            devices=[
                dra_pb2.Device(
                    request_names=[device.request],
                    pool_name=device.pool,
                    device_name=device.device,
                    cdi_device_ids=device.cdi_ids,
                    share_id=device.share,
                )
                for device in devices
            ]
        )

    def _unprepare(self, claim: dra_pb2.Claim) -> dra_pb2.NodeUnprepareResourceResponse:
        started = time.monotonic()
        extra = {"claim_uid": claim.uid, "claim": f"{claim.namespace}/{claim.name}"}
        try:
            self._claims.unprepare(claim.uid)
        except Exception as error:
            known = isinstance(error, OSError | ValueError)
            self._failed("unprepare")
            logger.error("unprepare failed", extra={**extra, "error": str(error)}, exc_info=not known)
            return dra_pb2.NodeUnprepareResourceResponse(error=str(error) or type(error).__name__)
        took_s = time.monotonic() - started
        self._unprepared(took_s)
        logger.info("unprepared claim", extra={**extra, "ms": round(took_s * 1000, 1)})
        return dra_pb2.NodeUnprepareResourceResponse()
