"""The documents of a run's database. Field names are what people read in Compass."""

from shared.documents.data import (
    Claim,
    DBRecordData,
    DispatchedSamplingTask,
    DispatchTokens,
    Record,
    Slot,
    Task,
    TaskPayload,
    data_id,
    record_id,
    task_id,
    task_of,
)
from shared.documents.data_parts import DataClaim, DataDispatch
from shared.documents.feedback import Feedback, ScoreWithoutFeedback
from shared.documents.replies import SampledResponse, SampledTokens, ToolCallResult

__all__ = [
    "Claim",
    "DBRecordData",
    "DataClaim",
    "DataDispatch",
    "DispatchTokens",
    "DispatchedSamplingTask",
    "Feedback",
    "Record",
    "SampledResponse",
    "SampledTokens",
    "ScoreWithoutFeedback",
    "Slot",
    "Task",
    "TaskPayload",
    "ToolCallResult",
    "data_id",
    "record_id",
    "task_id",
    "task_of",
]
