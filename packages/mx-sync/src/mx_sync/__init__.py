"""Moving one version of a model's weights, as a transaction, checked byte for byte.

Start with ``session.sync``; the seams that adapters implement are in ``ports``.
"""

from mx_sync.bucket import Assembler, Bucket, Packer, byte_views, describe_form, spec_of
from mx_sync.errors import (
    CoverageError,
    ManifestError,
    ProtocolError,
    ReadBackMismatch,
    RemoteFailure,
    SamplerPoisoned,
    SetMismatch,
    SharedMemoryExhausted,
    SyncError,
    SyncInProgress,
    TransportError,
    VersionRefused,
)
from mx_sync.manifest import Manifest, PartSpec, TensorSpec
from mx_sync.plan import Slice, TransferPlan
from mx_sync.ports import (
    CommitReceipt,
    EngineWeights,
    Readback,
    Sender,
    SinkStatus,
    WeightSink,
    WeightSource,
)
from mx_sync.remote import SinkClient, SinkServer
from mx_sync.session import SyncReport, sync
from mx_sync.sink import TransactionalSink
from mx_sync.sources import TensorSource
from mx_sync.transports import LocalSender, ShmReceiver, ShmSender
from mx_sync.version import WeightVersion

__all__ = [
    "Assembler",
    "Bucket",
    "CommitReceipt",
    "CoverageError",
    "EngineWeights",
    "LocalSender",
    "Manifest",
    "ManifestError",
    "Packer",
    "PartSpec",
    "ProtocolError",
    "ReadBackMismatch",
    "Readback",
    "RemoteFailure",
    "SamplerPoisoned",
    "Sender",
    "SetMismatch",
    "SharedMemoryExhausted",
    "ShmReceiver",
    "ShmSender",
    "SinkClient",
    "SinkServer",
    "SinkStatus",
    "Slice",
    "SyncError",
    "SyncInProgress",
    "SyncReport",
    "TensorSource",
    "TensorSpec",
    "TransactionalSink",
    "TransferPlan",
    "TransportError",
    "VersionRefused",
    "WeightSink",
    "WeightSource",
    "WeightVersion",
    "byte_views",
    "describe_form",
    "spec_of",
    "sync",
]
