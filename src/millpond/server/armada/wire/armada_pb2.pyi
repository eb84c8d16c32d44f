import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Cause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    Error: _ClassVar[Cause]
    Evicted: _ClassVar[Cause]
    OOM: _ClassVar[Cause]
    DeadlineExceeded: _ClassVar[Cause]
    Rejected: _ClassVar[Cause]

class Marker(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NONE: _ClassVar[Marker]
    ALIVE: _ClassVar[Marker]
    CAUGHT_UP: _ClassVar[Marker]
    GAP: _ClassVar[Marker]

class JobState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    QUEUED: _ClassVar[JobState]
    PENDING: _ClassVar[JobState]
    RUNNING: _ClassVar[JobState]
    SUCCEEDED: _ClassVar[JobState]
    FAILED: _ClassVar[JobState]
    UNKNOWN: _ClassVar[JobState]
    SUBMITTED: _ClassVar[JobState]
    LEASED: _ClassVar[JobState]
    PREEMPTED: _ClassVar[JobState]
    CANCELLED: _ClassVar[JobState]
    REJECTED: _ClassVar[JobState]

class JobRunState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RUN_STATE_UNKNOWN: _ClassVar[JobRunState]
    RUN_STATE_LEASED: _ClassVar[JobRunState]
    RUN_STATE_PENDING: _ClassVar[JobRunState]
    RUN_STATE_RUNNING: _ClassVar[JobRunState]
    RUN_STATE_SUCCEEDED: _ClassVar[JobRunState]
    RUN_STATE_FAILED: _ClassVar[JobRunState]
    RUN_STATE_PREEMPTED: _ClassVar[JobRunState]
    RUN_STATE_CANCELLED: _ClassVar[JobRunState]
    RUN_STATE_LEASE_EXPIRED: _ClassVar[JobRunState]
    RUNS_STATE_LEASE_RETURNED: _ClassVar[JobRunState]
Error: Cause
Evicted: Cause
OOM: Cause
DeadlineExceeded: Cause
Rejected: Cause
NONE: Marker
ALIVE: Marker
CAUGHT_UP: Marker
GAP: Marker
QUEUED: JobState
PENDING: JobState
RUNNING: JobState
SUCCEEDED: JobState
FAILED: JobState
UNKNOWN: JobState
SUBMITTED: JobState
LEASED: JobState
PREEMPTED: JobState
CANCELLED: JobState
REJECTED: JobState
RUN_STATE_UNKNOWN: JobRunState
RUN_STATE_LEASED: JobRunState
RUN_STATE_PENDING: JobRunState
RUN_STATE_RUNNING: JobRunState
RUN_STATE_SUCCEEDED: JobRunState
RUN_STATE_FAILED: JobRunState
RUN_STATE_PREEMPTED: JobRunState
RUN_STATE_CANCELLED: JobRunState
RUN_STATE_LEASE_EXPIRED: JobRunState
RUNS_STATE_LEASE_RETURNED: JobRunState

class Submitted(_message.Message):
    __slots__ = ("job_id", "job_set_id", "queue", "created", "job")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_SET_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    job_set_id: str
    queue: str
    created: _timestamp_pb2.Timestamp
    job: Job
    def __init__(self, job_id: _Optional[str] = ..., job_set_id: _Optional[str] = ..., queue: _Optional[str] = ..., created: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class Queued(_message.Message):
    __slots__ = ("job_id", "job_set_id", "queue", "created")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_SET_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    job_set_id: str
    queue: str
    created: _timestamp_pb2.Timestamp
    def __init__(self, job_id: _Optional[str] = ..., job_set_id: _Optional[str] = ..., queue: _Optional[str] = ..., created: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Leased(_message.Message):
    __slots__ = ("job_id", "job_set_id", "queue", "created", "cluster_id", "pool")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_SET_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    job_set_id: str
    queue: str
    created: _timestamp_pb2.Timestamp
    cluster_id: str
    pool: str
    def __init__(self, job_id: _Optional[str] = ..., job_set_id: _Optional[str] = ..., queue: _Optional[str] = ..., created: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., cluster_id: _Optional[str] = ..., pool: _Optional[str] = ...) -> None: ...

class LeaseReturned(_message.Message):
    __slots__ = ("job_id", "job_set_id", "queue", "created", "cluster_id", "reason", "kubernetes_id", "pod_number", "run_attempted")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_SET_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    KUBERNETES_ID_FIELD_NUMBER: _ClassVar[int]
    POD_NUMBER_FIELD_NUMBER: _ClassVar[int]
    RUN_ATTEMPTED_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    job_set_id: str
    queue: str
    created: _timestamp_pb2.Timestamp
    cluster_id: str
    reason: str
    kubernetes_id: str
    pod_number: int
    run_attempted: bool
    def __init__(self, job_id: _Optional[str] = ..., job_set_id: _Optional[str] = ..., queue: _Optional[str] = ..., created: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., cluster_id: _Optional[str] = ..., reason: _Optional[str] = ..., kubernetes_id: _Optional[str] = ..., pod_number: _Optional[int] = ..., run_attempted: bool = ...) -> None: ...

class LeaseExpired(_message.Message):
    __slots__ = ("job_id", "job_set_id", "queue", "created")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_SET_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    job_set_id: str
    queue: str
    created: _timestamp_pb2.Timestamp
    def __init__(self, job_id: _Optional[str] = ..., job_set_id: _Optional[str] = ..., queue: _Optional[str] = ..., created: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Pending(_message.Message):
    __slots__ = ("job_id", "job_set_id", "queue", "created", "cluster_id", "kubernetes_id", "pod_number", "pod_name", "pod_namespace", "pool")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_SET_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    KUBERNETES_ID_FIELD_NUMBER: _ClassVar[int]
    POD_NUMBER_FIELD_NUMBER: _ClassVar[int]
    POD_NAME_FIELD_NUMBER: _ClassVar[int]
    POD_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    job_set_id: str
    queue: str
    created: _timestamp_pb2.Timestamp
    cluster_id: str
    kubernetes_id: str
    pod_number: int
    pod_name: str
    pod_namespace: str
    pool: str
    def __init__(self, job_id: _Optional[str] = ..., job_set_id: _Optional[str] = ..., queue: _Optional[str] = ..., created: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., cluster_id: _Optional[str] = ..., kubernetes_id: _Optional[str] = ..., pod_number: _Optional[int] = ..., pod_name: _Optional[str] = ..., pod_namespace: _Optional[str] = ..., pool: _Optional[str] = ...) -> None: ...

class Running(_message.Message):
    __slots__ = ("job_id", "job_set_id", "queue", "created", "cluster_id", "kubernetes_id", "node_name", "pod_number", "pod_name", "pod_namespace", "pool")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_SET_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    KUBERNETES_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    POD_NUMBER_FIELD_NUMBER: _ClassVar[int]
    POD_NAME_FIELD_NUMBER: _ClassVar[int]
    POD_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    job_set_id: str
    queue: str
    created: _timestamp_pb2.Timestamp
    cluster_id: str
    kubernetes_id: str
    node_name: str
    pod_number: int
    pod_name: str
    pod_namespace: str
    pool: str
    def __init__(self, job_id: _Optional[str] = ..., job_set_id: _Optional[str] = ..., queue: _Optional[str] = ..., created: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., cluster_id: _Optional[str] = ..., kubernetes_id: _Optional[str] = ..., node_name: _Optional[str] = ..., pod_number: _Optional[int] = ..., pod_name: _Optional[str] = ..., pod_namespace: _Optional[str] = ..., pool: _Optional[str] = ...) -> None: ...

class ContainerStatus(_message.Message):
    __slots__ = ("name", "exitCode", "message", "reason", "cause")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EXITCODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    name: str
    exitCode: int
    message: str
    reason: str
    cause: Cause
    def __init__(self, name: _Optional[str] = ..., exitCode: _Optional[int] = ..., message: _Optional[str] = ..., reason: _Optional[str] = ..., cause: _Optional[_Union[Cause, str]] = ...) -> None: ...

class Failed(_message.Message):
    __slots__ = ("job_id", "job_set_id", "queue", "created", "cluster_id", "reason", "exit_codes", "kubernetes_id", "node_name", "pod_number", "container_statuses", "cause", "pod_name", "pod_namespace", "failure_category", "failure_subcategory", "retryable")
    class ExitCodesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_SET_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODES_FIELD_NUMBER: _ClassVar[int]
    KUBERNETES_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    POD_NUMBER_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_STATUSES_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    POD_NAME_FIELD_NUMBER: _ClassVar[int]
    POD_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_CATEGORY_FIELD_NUMBER: _ClassVar[int]
    FAILURE_SUBCATEGORY_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    job_set_id: str
    queue: str
    created: _timestamp_pb2.Timestamp
    cluster_id: str
    reason: str
    exit_codes: _containers.ScalarMap[str, int]
    kubernetes_id: str
    node_name: str
    pod_number: int
    container_statuses: _containers.RepeatedCompositeFieldContainer[ContainerStatus]
    cause: Cause
    pod_name: str
    pod_namespace: str
    failure_category: str
    failure_subcategory: str
    retryable: bool
    def __init__(self, job_id: _Optional[str] = ..., job_set_id: _Optional[str] = ..., queue: _Optional[str] = ..., created: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., cluster_id: _Optional[str] = ..., reason: _Optional[str] = ..., exit_codes: _Optional[_Mapping[str, int]] = ..., kubernetes_id: _Optional[str] = ..., node_name: _Optional[str] = ..., pod_number: _Optional[int] = ..., container_statuses: _Optional[_Iterable[_Union[ContainerStatus, _Mapping]]] = ..., cause: _Optional[_Union[Cause, str]] = ..., pod_name: _Optional[str] = ..., pod_namespace: _Optional[str] = ..., failure_category: _Optional[str] = ..., failure_subcategory: _Optional[str] = ..., retryable: bool = ...) -> None: ...

class Succeeded(_message.Message):
    __slots__ = ("job_id", "job_set_id", "queue", "created", "cluster_id", "kubernetes_id", "node_name", "pod_number", "pod_name", "pod_namespace")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_SET_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    KUBERNETES_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    POD_NUMBER_FIELD_NUMBER: _ClassVar[int]
    POD_NAME_FIELD_NUMBER: _ClassVar[int]
    POD_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    job_set_id: str
    queue: str
    created: _timestamp_pb2.Timestamp
    cluster_id: str
    kubernetes_id: str
    node_name: str
    pod_number: int
    pod_name: str
    pod_namespace: str
    def __init__(self, job_id: _Optional[str] = ..., job_set_id: _Optional[str] = ..., queue: _Optional[str] = ..., created: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., cluster_id: _Optional[str] = ..., kubernetes_id: _Optional[str] = ..., node_name: _Optional[str] = ..., pod_number: _Optional[int] = ..., pod_name: _Optional[str] = ..., pod_namespace: _Optional[str] = ...) -> None: ...

class Reprioritization(_message.Message):
    __slots__ = ("job_id", "job_set_id", "queue", "created", "new_priority", "requestor")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_SET_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    NEW_PRIORITY_FIELD_NUMBER: _ClassVar[int]
    REQUESTOR_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    job_set_id: str
    queue: str
    created: _timestamp_pb2.Timestamp
    new_priority: float
    requestor: str
    def __init__(self, job_id: _Optional[str] = ..., job_set_id: _Optional[str] = ..., queue: _Optional[str] = ..., created: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., new_priority: _Optional[float] = ..., requestor: _Optional[str] = ...) -> None: ...

class Cancellation(_message.Message):
    __slots__ = ("job_id", "job_set_id", "queue", "created", "requestor", "reason")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_SET_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    REQUESTOR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    job_set_id: str
    queue: str
    created: _timestamp_pb2.Timestamp
    requestor: str
    reason: str
    def __init__(self, job_id: _Optional[str] = ..., job_set_id: _Optional[str] = ..., queue: _Optional[str] = ..., created: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., requestor: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Preempted(_message.Message):
    __slots__ = ("job_id", "job_set_id", "queue", "created", "cluster_id", "run_id", "preemptive_run_id", "reason", "preempting_job_id", "requestor")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_SET_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIVE_RUN_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PREEMPTING_JOB_ID_FIELD_NUMBER: _ClassVar[int]
    REQUESTOR_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    job_set_id: str
    queue: str
    created: _timestamp_pb2.Timestamp
    cluster_id: str
    run_id: str
    preemptive_run_id: str
    reason: str
    preempting_job_id: str
    requestor: str
    def __init__(self, job_id: _Optional[str] = ..., job_set_id: _Optional[str] = ..., queue: _Optional[str] = ..., created: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., cluster_id: _Optional[str] = ..., run_id: _Optional[str] = ..., preemptive_run_id: _Optional[str] = ..., reason: _Optional[str] = ..., preempting_job_id: _Optional[str] = ..., requestor: _Optional[str] = ...) -> None: ...

class Utilisation(_message.Message):
    __slots__ = ("job_id", "job_set_id", "queue", "created", "cluster_id", "kubernetes_id", "MaxResourcesForPeriod", "node_name", "pod_number", "pod_name", "pod_namespace", "total_cumulative_usage", "AvgResourcesForPeriod")
    class MaxResourcesForPeriodEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Quantity
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Quantity, _Mapping]] = ...) -> None: ...
    class TotalCumulativeUsageEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Quantity
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Quantity, _Mapping]] = ...) -> None: ...
    class AvgResourcesForPeriodEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Quantity
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Quantity, _Mapping]] = ...) -> None: ...
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_SET_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    KUBERNETES_ID_FIELD_NUMBER: _ClassVar[int]
    MAXRESOURCESFORPERIOD_FIELD_NUMBER: _ClassVar[int]
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    POD_NUMBER_FIELD_NUMBER: _ClassVar[int]
    POD_NAME_FIELD_NUMBER: _ClassVar[int]
    POD_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_CUMULATIVE_USAGE_FIELD_NUMBER: _ClassVar[int]
    AVGRESOURCESFORPERIOD_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    job_set_id: str
    queue: str
    created: _timestamp_pb2.Timestamp
    cluster_id: str
    kubernetes_id: str
    MaxResourcesForPeriod: _containers.MessageMap[str, Quantity]
    node_name: str
    pod_number: int
    pod_name: str
    pod_namespace: str
    total_cumulative_usage: _containers.MessageMap[str, Quantity]
    AvgResourcesForPeriod: _containers.MessageMap[str, Quantity]
    def __init__(self, job_id: _Optional[str] = ..., job_set_id: _Optional[str] = ..., queue: _Optional[str] = ..., created: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., cluster_id: _Optional[str] = ..., kubernetes_id: _Optional[str] = ..., MaxResourcesForPeriod: _Optional[_Mapping[str, Quantity]] = ..., node_name: _Optional[str] = ..., pod_number: _Optional[int] = ..., pod_name: _Optional[str] = ..., pod_namespace: _Optional[str] = ..., total_cumulative_usage: _Optional[_Mapping[str, Quantity]] = ..., AvgResourcesForPeriod: _Optional[_Mapping[str, Quantity]] = ...) -> None: ...

class Quantity(_message.Message):
    __slots__ = ("string",)
    STRING_FIELD_NUMBER: _ClassVar[int]
    string: str
    def __init__(self, string: _Optional[str] = ...) -> None: ...

class IngressInfo(_message.Message):
    __slots__ = ("job_id", "job_set_id", "queue", "created", "cluster_id", "kubernetes_id", "node_name", "pod_number", "ingress_addresses", "pod_name", "pod_namespace")
    class IngressAddressesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: str
        def __init__(self, key: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_SET_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    KUBERNETES_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    POD_NUMBER_FIELD_NUMBER: _ClassVar[int]
    INGRESS_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    POD_NAME_FIELD_NUMBER: _ClassVar[int]
    POD_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    job_set_id: str
    queue: str
    created: _timestamp_pb2.Timestamp
    cluster_id: str
    kubernetes_id: str
    node_name: str
    pod_number: int
    ingress_addresses: _containers.ScalarMap[int, str]
    pod_name: str
    pod_namespace: str
    def __init__(self, job_id: _Optional[str] = ..., job_set_id: _Optional[str] = ..., queue: _Optional[str] = ..., created: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., cluster_id: _Optional[str] = ..., kubernetes_id: _Optional[str] = ..., node_name: _Optional[str] = ..., pod_number: _Optional[int] = ..., ingress_addresses: _Optional[_Mapping[int, str]] = ..., pod_name: _Optional[str] = ..., pod_namespace: _Optional[str] = ...) -> None: ...

class EventMessage(_message.Message):
    __slots__ = ("submitted", "queued", "leased", "lease_returned", "lease_expired", "pending", "running", "failed", "succeeded", "reprioritized", "cancelling", "cancelled", "utilisation", "ingress_info", "reprioritizing", "preempted", "preempting")
    SUBMITTED_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    LEASE_RETURNED_FIELD_NUMBER: _ClassVar[int]
    LEASE_EXPIRED_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    SUCCEEDED_FIELD_NUMBER: _ClassVar[int]
    REPRIORITIZED_FIELD_NUMBER: _ClassVar[int]
    CANCELLING_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    UTILISATION_FIELD_NUMBER: _ClassVar[int]
    INGRESS_INFO_FIELD_NUMBER: _ClassVar[int]
    REPRIORITIZING_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_FIELD_NUMBER: _ClassVar[int]
    PREEMPTING_FIELD_NUMBER: _ClassVar[int]
    submitted: Submitted
    queued: Queued
    leased: Leased
    lease_returned: LeaseReturned
    lease_expired: LeaseExpired
    pending: Pending
    running: Running
    failed: Failed
    succeeded: Succeeded
    reprioritized: Reprioritization
    cancelling: Cancellation
    cancelled: Cancellation
    utilisation: Utilisation
    ingress_info: IngressInfo
    reprioritizing: Reprioritization
    preempted: Preempted
    preempting: Cancellation
    def __init__(self, submitted: _Optional[_Union[Submitted, _Mapping]] = ..., queued: _Optional[_Union[Queued, _Mapping]] = ..., leased: _Optional[_Union[Leased, _Mapping]] = ..., lease_returned: _Optional[_Union[LeaseReturned, _Mapping]] = ..., lease_expired: _Optional[_Union[LeaseExpired, _Mapping]] = ..., pending: _Optional[_Union[Pending, _Mapping]] = ..., running: _Optional[_Union[Running, _Mapping]] = ..., failed: _Optional[_Union[Failed, _Mapping]] = ..., succeeded: _Optional[_Union[Succeeded, _Mapping]] = ..., reprioritized: _Optional[_Union[Reprioritization, _Mapping]] = ..., cancelling: _Optional[_Union[Cancellation, _Mapping]] = ..., cancelled: _Optional[_Union[Cancellation, _Mapping]] = ..., utilisation: _Optional[_Union[Utilisation, _Mapping]] = ..., ingress_info: _Optional[_Union[IngressInfo, _Mapping]] = ..., reprioritizing: _Optional[_Union[Reprioritization, _Mapping]] = ..., preempted: _Optional[_Union[Preempted, _Mapping]] = ..., preempting: _Optional[_Union[Cancellation, _Mapping]] = ...) -> None: ...

class EventStreamMessage(_message.Message):
    __slots__ = ("id", "message", "stored", "marker")
    ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    MARKER_FIELD_NUMBER: _ClassVar[int]
    id: str
    message: EventMessage
    stored: StoredEvent
    marker: Marker
    def __init__(self, id: _Optional[str] = ..., message: _Optional[_Union[EventMessage, _Mapping]] = ..., stored: _Optional[_Union[StoredEvent, _Mapping]] = ..., marker: _Optional[_Union[Marker, str]] = ...) -> None: ...

class StoredEvent(_message.Message):
    __slots__ = ("kind", "payload", "headers", "time_ms")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    KIND_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    payload: bytes
    headers: _containers.ScalarMap[str, str]
    time_ms: int
    def __init__(self, kind: _Optional[str] = ..., payload: _Optional[bytes] = ..., headers: _Optional[_Mapping[str, str]] = ..., time_ms: _Optional[int] = ...) -> None: ...

class JobSetRequest(_message.Message):
    __slots__ = ("id", "watch", "from_message_id", "queue", "errorIfMissing")
    ID_FIELD_NUMBER: _ClassVar[int]
    WATCH_FIELD_NUMBER: _ClassVar[int]
    FROM_MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    ERRORIFMISSING_FIELD_NUMBER: _ClassVar[int]
    id: str
    watch: bool
    from_message_id: str
    queue: str
    errorIfMissing: bool
    def __init__(self, id: _Optional[str] = ..., watch: bool = ..., from_message_id: _Optional[str] = ..., queue: _Optional[str] = ..., errorIfMissing: bool = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("queue", "job_set_id", "from_id")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    JOB_SET_ID_FIELD_NUMBER: _ClassVar[int]
    FROM_ID_FIELD_NUMBER: _ClassVar[int]
    queue: str
    job_set_id: str
    from_id: str
    def __init__(self, queue: _Optional[str] = ..., job_set_id: _Optional[str] = ..., from_id: _Optional[str] = ...) -> None: ...

class HealthCheckResponse(_message.Message):
    __slots__ = ("status",)
    class ServingStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[HealthCheckResponse.ServingStatus]
        SERVING: _ClassVar[HealthCheckResponse.ServingStatus]
        NOT_SERVING: _ClassVar[HealthCheckResponse.ServingStatus]
    UNKNOWN: HealthCheckResponse.ServingStatus
    SERVING: HealthCheckResponse.ServingStatus
    NOT_SERVING: HealthCheckResponse.ServingStatus
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: HealthCheckResponse.ServingStatus
    def __init__(self, status: _Optional[_Union[HealthCheckResponse.ServingStatus, str]] = ...) -> None: ...

class Queue(_message.Message):
    __slots__ = ("name", "priority_factor", "user_owners", "group_owners", "resource_limits", "permissions", "resource_limits_by_priority_class_name", "cordoned", "labels_deprecated", "labels", "retry_policies")
    class Permissions(_message.Message):
        __slots__ = ("subjects", "verbs")
        class Subject(_message.Message):
            __slots__ = ("kind", "name")
            KIND_FIELD_NUMBER: _ClassVar[int]
            NAME_FIELD_NUMBER: _ClassVar[int]
            kind: str
            name: str
            def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...
        SUBJECTS_FIELD_NUMBER: _ClassVar[int]
        VERBS_FIELD_NUMBER: _ClassVar[int]
        subjects: _containers.RepeatedCompositeFieldContainer[Queue.Permissions.Subject]
        verbs: _containers.RepeatedScalarFieldContainer[str]
        def __init__(self, subjects: _Optional[_Iterable[_Union[Queue.Permissions.Subject, _Mapping]]] = ..., verbs: _Optional[_Iterable[str]] = ...) -> None: ...
    class ResourceLimitsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class ResourceLimitsByPriorityClassNameEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FACTOR_FIELD_NUMBER: _ClassVar[int]
    USER_OWNERS_FIELD_NUMBER: _ClassVar[int]
    GROUP_OWNERS_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_LIMITS_FIELD_NUMBER: _ClassVar[int]
    PERMISSIONS_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_LIMITS_BY_PRIORITY_CLASS_NAME_FIELD_NUMBER: _ClassVar[int]
    CORDONED_FIELD_NUMBER: _ClassVar[int]
    LABELS_DEPRECATED_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    RETRY_POLICIES_FIELD_NUMBER: _ClassVar[int]
    name: str
    priority_factor: float
    user_owners: _containers.RepeatedScalarFieldContainer[str]
    group_owners: _containers.RepeatedScalarFieldContainer[str]
    resource_limits: _containers.ScalarMap[str, float]
    permissions: _containers.RepeatedCompositeFieldContainer[Queue.Permissions]
    resource_limits_by_priority_class_name: _containers.ScalarMap[str, bytes]
    cordoned: bool
    labels_deprecated: _containers.RepeatedScalarFieldContainer[str]
    labels: _containers.ScalarMap[str, str]
    retry_policies: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., priority_factor: _Optional[float] = ..., user_owners: _Optional[_Iterable[str]] = ..., group_owners: _Optional[_Iterable[str]] = ..., resource_limits: _Optional[_Mapping[str, float]] = ..., permissions: _Optional[_Iterable[_Union[Queue.Permissions, _Mapping]]] = ..., resource_limits_by_priority_class_name: _Optional[_Mapping[str, bytes]] = ..., cordoned: bool = ..., labels_deprecated: _Optional[_Iterable[str]] = ..., labels: _Optional[_Mapping[str, str]] = ..., retry_policies: _Optional[_Iterable[str]] = ...) -> None: ...

class QueueList(_message.Message):
    __slots__ = ("queues",)
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[Queue]
    def __init__(self, queues: _Optional[_Iterable[_Union[Queue, _Mapping]]] = ...) -> None: ...

class FailedQueues(_message.Message):
    __slots__ = ("failed_queues",)
    class FailedQueue(_message.Message):
        __slots__ = ("queue", "error")
        QUEUE_FIELD_NUMBER: _ClassVar[int]
        ERROR_FIELD_NUMBER: _ClassVar[int]
        queue: Queue
        error: str
        def __init__(self, queue: _Optional[_Union[Queue, _Mapping]] = ..., error: _Optional[str] = ...) -> None: ...
    FAILED_QUEUES_FIELD_NUMBER: _ClassVar[int]
    failed_queues: _containers.RepeatedCompositeFieldContainer[FailedQueues.FailedQueue]
    def __init__(self, failed_queues: _Optional[_Iterable[_Union[FailedQueues.FailedQueue, _Mapping]]] = ...) -> None: ...

class QueueName(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class QueuesRequest(_message.Message):
    __slots__ = ("num",)
    NUM_FIELD_NUMBER: _ClassVar[int]
    num: int
    def __init__(self, num: _Optional[int] = ...) -> None: ...

class QueuesMessage(_message.Message):
    __slots__ = ("queue", "end")
    class End(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    queue: Queue
    end: QueuesMessage.End
    def __init__(self, queue: _Optional[_Union[Queue, _Mapping]] = ..., end: _Optional[_Union[QueuesMessage.End, _Mapping]] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("id", "job_set_id", "queue", "priority", "pod_spec", "created", "namespace", "owner", "labels", "annotations", "required_node_labels", "pod_specs", "client_id", "ingress", "services", "scheduler")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class AnnotationsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class RequiredNodeLabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    JOB_SET_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    POD_SPEC_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    ANNOTATIONS_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_NODE_LABELS_FIELD_NUMBER: _ClassVar[int]
    POD_SPECS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    INGRESS_FIELD_NUMBER: _ClassVar[int]
    SERVICES_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    id: str
    job_set_id: str
    queue: str
    priority: float
    pod_spec: bytes
    created: _timestamp_pb2.Timestamp
    namespace: str
    owner: str
    labels: _containers.ScalarMap[str, str]
    annotations: _containers.ScalarMap[str, str]
    required_node_labels: _containers.ScalarMap[str, str]
    pod_specs: _containers.RepeatedScalarFieldContainer[bytes]
    client_id: str
    ingress: _containers.RepeatedScalarFieldContainer[bytes]
    services: _containers.RepeatedScalarFieldContainer[bytes]
    scheduler: str
    def __init__(self, id: _Optional[str] = ..., job_set_id: _Optional[str] = ..., queue: _Optional[str] = ..., priority: _Optional[float] = ..., pod_spec: _Optional[bytes] = ..., created: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., namespace: _Optional[str] = ..., owner: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., annotations: _Optional[_Mapping[str, str]] = ..., required_node_labels: _Optional[_Mapping[str, str]] = ..., pod_specs: _Optional[_Iterable[bytes]] = ..., client_id: _Optional[str] = ..., ingress: _Optional[_Iterable[bytes]] = ..., services: _Optional[_Iterable[bytes]] = ..., scheduler: _Optional[str] = ...) -> None: ...

class JobSubmitRequestItem(_message.Message):
    __slots__ = ("priority", "pod_spec", "namespace", "labels", "annotations", "required_node_labels", "pod_specs", "client_id", "ingress", "services", "scheduler", "external_job_uri")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class AnnotationsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class RequiredNodeLabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    POD_SPEC_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    ANNOTATIONS_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_NODE_LABELS_FIELD_NUMBER: _ClassVar[int]
    POD_SPECS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    INGRESS_FIELD_NUMBER: _ClassVar[int]
    SERVICES_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_JOB_URI_FIELD_NUMBER: _ClassVar[int]
    priority: float
    pod_spec: bytes
    namespace: str
    labels: _containers.ScalarMap[str, str]
    annotations: _containers.ScalarMap[str, str]
    required_node_labels: _containers.ScalarMap[str, str]
    pod_specs: _containers.RepeatedScalarFieldContainer[bytes]
    client_id: str
    ingress: _containers.RepeatedScalarFieldContainer[bytes]
    services: _containers.RepeatedScalarFieldContainer[bytes]
    scheduler: str
    external_job_uri: str
    def __init__(self, priority: _Optional[float] = ..., pod_spec: _Optional[bytes] = ..., namespace: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., annotations: _Optional[_Mapping[str, str]] = ..., required_node_labels: _Optional[_Mapping[str, str]] = ..., pod_specs: _Optional[_Iterable[bytes]] = ..., client_id: _Optional[str] = ..., ingress: _Optional[_Iterable[bytes]] = ..., services: _Optional[_Iterable[bytes]] = ..., scheduler: _Optional[str] = ..., external_job_uri: _Optional[str] = ...) -> None: ...

class JobSubmitRequest(_message.Message):
    __slots__ = ("queue", "job_set_id", "job_request_items")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    JOB_SET_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_REQUEST_ITEMS_FIELD_NUMBER: _ClassVar[int]
    queue: str
    job_set_id: str
    job_request_items: _containers.RepeatedCompositeFieldContainer[JobSubmitRequestItem]
    def __init__(self, queue: _Optional[str] = ..., job_set_id: _Optional[str] = ..., job_request_items: _Optional[_Iterable[_Union[JobSubmitRequestItem, _Mapping]]] = ...) -> None: ...

class JobSubmitResponse(_message.Message):
    __slots__ = ("job_response_items",)
    class Item(_message.Message):
        __slots__ = ("job_id", "error")
        JOB_ID_FIELD_NUMBER: _ClassVar[int]
        ERROR_FIELD_NUMBER: _ClassVar[int]
        job_id: str
        error: str
        def __init__(self, job_id: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...
    JOB_RESPONSE_ITEMS_FIELD_NUMBER: _ClassVar[int]
    job_response_items: _containers.RepeatedCompositeFieldContainer[JobSubmitResponse.Item]
    def __init__(self, job_response_items: _Optional[_Iterable[_Union[JobSubmitResponse.Item, _Mapping]]] = ...) -> None: ...

class JobCancelRequest(_message.Message):
    __slots__ = ("job_id", "job_set_id", "queue", "job_ids", "reason")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_SET_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    JOB_IDS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    job_set_id: str
    queue: str
    job_ids: _containers.RepeatedScalarFieldContainer[str]
    reason: str
    def __init__(self, job_id: _Optional[str] = ..., job_set_id: _Optional[str] = ..., queue: _Optional[str] = ..., job_ids: _Optional[_Iterable[str]] = ..., reason: _Optional[str] = ...) -> None: ...

class CancellationResult(_message.Message):
    __slots__ = ("cancelled_ids",)
    CANCELLED_IDS_FIELD_NUMBER: _ClassVar[int]
    cancelled_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, cancelled_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class JobSetCancelRequest(_message.Message):
    __slots__ = ("job_set_id", "queue", "filter", "reason")
    class Filter(_message.Message):
        __slots__ = ("states",)
        STATES_FIELD_NUMBER: _ClassVar[int]
        states: _containers.RepeatedScalarFieldContainer[JobState]
        def __init__(self, states: _Optional[_Iterable[_Union[JobState, str]]] = ...) -> None: ...
    JOB_SET_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    job_set_id: str
    queue: str
    filter: JobSetCancelRequest.Filter
    reason: str
    def __init__(self, job_set_id: _Optional[str] = ..., queue: _Optional[str] = ..., filter: _Optional[_Union[JobSetCancelRequest.Filter, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class JobReprioritizeRequest(_message.Message):
    __slots__ = ("job_ids", "job_set_id", "queue", "new_priority")
    JOB_IDS_FIELD_NUMBER: _ClassVar[int]
    JOB_SET_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    NEW_PRIORITY_FIELD_NUMBER: _ClassVar[int]
    job_ids: _containers.RepeatedScalarFieldContainer[str]
    job_set_id: str
    queue: str
    new_priority: float
    def __init__(self, job_ids: _Optional[_Iterable[str]] = ..., job_set_id: _Optional[str] = ..., queue: _Optional[str] = ..., new_priority: _Optional[float] = ...) -> None: ...

class JobReprioritizeResponse(_message.Message):
    __slots__ = ("reprioritization_results",)
    class ReprioritizationResultsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    REPRIORITIZATION_RESULTS_FIELD_NUMBER: _ClassVar[int]
    reprioritization_results: _containers.ScalarMap[str, str]
    def __init__(self, reprioritization_results: _Optional[_Mapping[str, str]] = ...) -> None: ...

class JobPreemptRequest(_message.Message):
    __slots__ = ("queue", "job_set_id", "job_ids", "reason")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    JOB_SET_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_IDS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    queue: str
    job_set_id: str
    job_ids: _containers.RepeatedScalarFieldContainer[str]
    reason: str
    def __init__(self, queue: _Optional[str] = ..., job_set_id: _Optional[str] = ..., job_ids: _Optional[_Iterable[str]] = ..., reason: _Optional[str] = ...) -> None: ...

class PreemptionResult(_message.Message):
    __slots__ = ("preemption_results",)
    class PreemptionResultsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PREEMPTION_RESULTS_FIELD_NUMBER: _ClassVar[int]
    preemption_results: _containers.ScalarMap[str, str]
    def __init__(self, preemption_results: _Optional[_Mapping[str, str]] = ...) -> None: ...

class JobRunDetails(_message.Message):
    __slots__ = ("run_id", "job_id", "state", "cluster", "node", "leased_ts", "pending_ts", "started_ts", "finished_ts", "ingress_addresses")
    class IngressAddressesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: str
        def __init__(self, key: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    LEASED_TS_FIELD_NUMBER: _ClassVar[int]
    PENDING_TS_FIELD_NUMBER: _ClassVar[int]
    STARTED_TS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_TS_FIELD_NUMBER: _ClassVar[int]
    INGRESS_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    job_id: str
    state: JobRunState
    cluster: str
    node: str
    leased_ts: _timestamp_pb2.Timestamp
    pending_ts: _timestamp_pb2.Timestamp
    started_ts: _timestamp_pb2.Timestamp
    finished_ts: _timestamp_pb2.Timestamp
    ingress_addresses: _containers.ScalarMap[int, str]
    def __init__(self, run_id: _Optional[str] = ..., job_id: _Optional[str] = ..., state: _Optional[_Union[JobRunState, str]] = ..., cluster: _Optional[str] = ..., node: _Optional[str] = ..., leased_ts: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., pending_ts: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., started_ts: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., finished_ts: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ingress_addresses: _Optional[_Mapping[int, str]] = ...) -> None: ...

class JobDetails(_message.Message):
    __slots__ = ("job_id", "queue", "jobset", "namespace", "state", "submitted_ts", "cancel_ts", "cancel_reason", "last_transition_ts", "latest_run_id", "job_spec", "job_runs", "cancel_user")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    JOBSET_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_TS_FIELD_NUMBER: _ClassVar[int]
    CANCEL_TS_FIELD_NUMBER: _ClassVar[int]
    CANCEL_REASON_FIELD_NUMBER: _ClassVar[int]
    LAST_TRANSITION_TS_FIELD_NUMBER: _ClassVar[int]
    LATEST_RUN_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_SPEC_FIELD_NUMBER: _ClassVar[int]
    JOB_RUNS_FIELD_NUMBER: _ClassVar[int]
    CANCEL_USER_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    queue: str
    jobset: str
    namespace: str
    state: JobState
    submitted_ts: _timestamp_pb2.Timestamp
    cancel_ts: _timestamp_pb2.Timestamp
    cancel_reason: str
    last_transition_ts: _timestamp_pb2.Timestamp
    latest_run_id: str
    job_spec: Job
    job_runs: _containers.RepeatedCompositeFieldContainer[JobRunDetails]
    cancel_user: str
    def __init__(self, job_id: _Optional[str] = ..., queue: _Optional[str] = ..., jobset: _Optional[str] = ..., namespace: _Optional[str] = ..., state: _Optional[_Union[JobState, str]] = ..., submitted_ts: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., cancel_ts: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., cancel_reason: _Optional[str] = ..., last_transition_ts: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., latest_run_id: _Optional[str] = ..., job_spec: _Optional[_Union[Job, _Mapping]] = ..., job_runs: _Optional[_Iterable[_Union[JobRunDetails, _Mapping]]] = ..., cancel_user: _Optional[str] = ...) -> None: ...

class JobsRequest(_message.Message):
    __slots__ = ("job_ids", "expand_job_spec", "expand_job_run")
    JOB_IDS_FIELD_NUMBER: _ClassVar[int]
    EXPAND_JOB_SPEC_FIELD_NUMBER: _ClassVar[int]
    EXPAND_JOB_RUN_FIELD_NUMBER: _ClassVar[int]
    job_ids: _containers.RepeatedScalarFieldContainer[str]
    expand_job_spec: bool
    expand_job_run: bool
    def __init__(self, job_ids: _Optional[_Iterable[str]] = ..., expand_job_spec: bool = ..., expand_job_run: bool = ...) -> None: ...

class JobOfUriRequest(_message.Message):
    __slots__ = ("queue", "jobset", "external_job_uri")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    JOBSET_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_JOB_URI_FIELD_NUMBER: _ClassVar[int]
    queue: str
    jobset: str
    external_job_uri: str
    def __init__(self, queue: _Optional[str] = ..., jobset: _Optional[str] = ..., external_job_uri: _Optional[str] = ...) -> None: ...

class JobStatusResponse(_message.Message):
    __slots__ = ("job_states",)
    class JobStatesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: JobState
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[JobState, str]] = ...) -> None: ...
    JOB_STATES_FIELD_NUMBER: _ClassVar[int]
    job_states: _containers.ScalarMap[str, JobState]
    def __init__(self, job_states: _Optional[_Mapping[str, JobState]] = ...) -> None: ...

class JobDetailsResponse(_message.Message):
    __slots__ = ("job_details",)
    class JobDetailsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: JobDetails
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[JobDetails, _Mapping]] = ...) -> None: ...
    JOB_DETAILS_FIELD_NUMBER: _ClassVar[int]
    job_details: _containers.MessageMap[str, JobDetails]
    def __init__(self, job_details: _Optional[_Mapping[str, JobDetails]] = ...) -> None: ...

class JobRunsRequest(_message.Message):
    __slots__ = ("run_ids",)
    RUN_IDS_FIELD_NUMBER: _ClassVar[int]
    run_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, run_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class JobRunsResponse(_message.Message):
    __slots__ = ("job_run_details",)
    class JobRunDetailsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: JobRunDetails
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[JobRunDetails, _Mapping]] = ...) -> None: ...
    JOB_RUN_DETAILS_FIELD_NUMBER: _ClassVar[int]
    job_run_details: _containers.MessageMap[str, JobRunDetails]
    def __init__(self, job_run_details: _Optional[_Mapping[str, JobRunDetails]] = ...) -> None: ...

class JobErrorsResponse(_message.Message):
    __slots__ = ("job_errors",)
    class JobErrorsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    JOB_ERRORS_FIELD_NUMBER: _ClassVar[int]
    job_errors: _containers.ScalarMap[str, str]
    def __init__(self, job_errors: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ActiveQueues(_message.Message):
    __slots__ = ("queues",)
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, queues: _Optional[_Iterable[str]] = ...) -> None: ...

class ActiveQueuesResponse(_message.Message):
    __slots__ = ("active_queues_by_pool",)
    class ActiveQueuesByPoolEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: ActiveQueues
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[ActiveQueues, _Mapping]] = ...) -> None: ...
    ACTIVE_QUEUES_BY_POOL_FIELD_NUMBER: _ClassVar[int]
    active_queues_by_pool: _containers.MessageMap[str, ActiveQueues]
    def __init__(self, active_queues_by_pool: _Optional[_Mapping[str, ActiveQueues]] = ...) -> None: ...
