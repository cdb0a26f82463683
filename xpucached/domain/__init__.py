"""The words of the house: frozen values that every room exchanges.  Pure.

Conventions that hold for every field: times are aware and in UTC, sizes are bytes, durations are seconds, paths are
absolute.  Everything here can travel as JSON (see `api`), so no value holds a descriptor, a lock or a callable.

Divided by subject; every other room imports from here, because these names are the vocabulary.
"""

from __future__ import annotations

from xpucached.domain.advice import Application as Application
from xpucached.domain.advice import Assay as Assay
from xpucached.domain.advice import Baseline as Baseline
from xpucached.domain.advice import Cause as Cause
from xpucached.domain.advice import Diagnosis as Diagnosis
from xpucached.domain.advice import Figure as Figure
from xpucached.domain.advice import Finding as Finding
from xpucached.domain.advice import Safety as Safety
from xpucached.domain.advice import SyclRuntime as SyclRuntime
from xpucached.domain.environments import Environment as Environment
from xpucached.domain.environments import Origin as Origin
from xpucached.domain.exercises import PRECISIONS as PRECISIONS
from xpucached.domain.exercises import RANDOM as RANDOM
from xpucached.domain.exercises import Exercise as Exercise
from xpucached.domain.exercises import Loader as Loader
from xpucached.domain.exercises import Variant as Variant
from xpucached.domain.flaws import Effect as Effect
from xpucached.domain.flaws import Flaw as Flaw
from xpucached.domain.hosts import Device as Device
from xpucached.domain.hosts import DriverChange as DriverChange
from xpucached.domain.hosts import DriverFile as DriverFile
from xpucached.domain.hosts import Host as Host
from xpucached.domain.hosts import Presence as Presence
from xpucached.domain.hosts import ProbeReport as ProbeReport
from xpucached.domain.hosts import Problem as Problem
from xpucached.domain.hosts import Process as Process
from xpucached.domain.manners import Effort as Effort
from xpucached.domain.manners import Manners as Manners
from xpucached.domain.manners import Occasion as Occasion
from xpucached.domain.manners import Strain as Strain
from xpucached.domain.models import Attribution as Attribution
from xpucached.domain.models import Coverage as Coverage
from xpucached.domain.models import Figures as Figures
from xpucached.domain.models import Model as Model
from xpucached.domain.models import ModelStatus as ModelStatus
from xpucached.domain.models import Outcome as Outcome
from xpucached.domain.models import Pass as Pass
from xpucached.domain.models import RanOn as RanOn
from xpucached.domain.models import Run as Run
from xpucached.domain.models import Trial as Trial
from xpucached.domain.models import WarmReason as WarmReason
from xpucached.domain.models import Warmth as Warmth
from xpucached.domain.models import Workload as Workload
from xpucached.domain.models import check_name as check_name
from xpucached.domain.models import is_unit as is_unit
from xpucached.domain.names import Architecture as Architecture
from xpucached.domain.names import EntryKey as EntryKey
from xpucached.domain.names import EntryRef as EntryRef
from xpucached.domain.names import Fingerprint as Fingerprint
from xpucached.domain.names import JobId as JobId
from xpucached.domain.names import KindName as KindName
from xpucached.domain.names import ModelName as ModelName
from xpucached.domain.plans import Deferred as Deferred
from xpucached.domain.plans import Evict as Evict
from xpucached.domain.plans import EvictionPlan as EvictionPlan
from xpucached.domain.plans import EvictionReport as EvictionReport
from xpucached.domain.plans import EvictReason as EvictReason
from xpucached.domain.plans import IndexedEntry as IndexedEntry
from xpucached.domain.plans import NoRecipe as NoRecipe
from xpucached.domain.plans import Policy as Policy
from xpucached.domain.plans import PrewarmPlan as PrewarmPlan
from xpucached.domain.plans import PrewarmReport as PrewarmReport
from xpucached.domain.plans import Rebuild as Rebuild
from xpucached.domain.plans import Recipe as Recipe
from xpucached.domain.plans import ReplayPlan as ReplayPlan
from xpucached.domain.plans import ReplayReason as ReplayReason
from xpucached.domain.plans import ReplayReport as ReplayReport
from xpucached.domain.plans import ScanReport as ScanReport
from xpucached.domain.plans import Warm as Warm
from xpucached.domain.stores import Delta as Delta
from xpucached.domain.stores import Entry as Entry
from xpucached.domain.stores import EntryId as EntryId
from xpucached.domain.stores import EntryState as EntryState
from xpucached.domain.stores import FoundStore as FoundStore
from xpucached.domain.stores import ImageFormat as ImageFormat
from xpucached.domain.stores import Kernel as Kernel
from xpucached.domain.stores import Scan as Scan
from xpucached.domain.stores import Seen as Seen
from xpucached.domain.stores import Store as Store
from xpucached.domain.stores import StoreOrigin as StoreOrigin
from xpucached.domain.stores import StoreState as StoreState
from xpucached.domain.stores import StoreStatus as StoreStatus
from xpucached.domain.talk import EntryPage as EntryPage
from xpucached.domain.talk import EntryQuery as EntryQuery
from xpucached.domain.talk import Event as Event
from xpucached.domain.talk import Job as Job
from xpucached.domain.talk import JobState as JobState
from xpucached.domain.talk import Progress as Progress
from xpucached.domain.talk import Refusal as Refusal
from xpucached.domain.talk import Status as Status
from xpucached.domain.talk import Verdict as Verdict
from xpucached.domain.wakes import Booted as Booted
from xpucached.domain.wakes import DriverTouched as DriverTouched
from xpucached.domain.wakes import Due as Due
from xpucached.domain.wakes import ModelsTouched as ModelsTouched
from xpucached.domain.wakes import StoreTouched as StoreTouched
from xpucached.domain.wakes import Wake as Wake
