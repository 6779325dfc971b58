# SPDX-License-Identifier: Apache-2.0
"""The way of a request: chosen replicas, prefill, the cache across the fabric, its tokens.

A replica that fails under a request loses what it had computed; the request is sent again, with the
tokens that came out already as part of its prompt, so that none comes out twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from railweave.fabric.errors import RailweaveError
from railweave.workloads.serving.replica import Replica, ReplicaLostError
from railweave.workloads.serving.sequence import Sequence
from railweave.workloads.step_load import StepLoad

if TYPE_CHECKING:
    from collections.abc import Generator

    import simpy

    from railweave.workloads.serving.fleet import Fleet
    from railweave.workloads.serving.frontend import Frontend
    from railweave.workloads.serving.handoff import Handoff
    from railweave.workloads.serving.handoff.mover import KvMover
    from railweave.workloads.serving.model import ServingModel
    from railweave.workloads.serving.request import Request
    from railweave.workloads.workload import WorkloadContext

__all__ = ["Ways"]


class _TimedOutError(Exception):
    """A prefilled cache waited too long for decode blocks."""


class Ways:
    """Sends requests on their way.

    Parameters
    ----------
    workload, context
        What was asked for.
    fleet, frontend
        The replicas, and the network before them.
    mover, handoff
        How caches move; None where replicas prefill and decode.

    Attributes
    ----------
    timeouts
        Prefilled caches that were dropped because no decode replica had room in time.
    """

    def __init__(
        self,
        workload: ServingModel,
        context: WorkloadContext,
        fleet: Fleet,
        frontend: Frontend,
        mover: KvMover | None,
        handoff: type[Handoff] | None,
    ) -> None:
        self._workload, self._fleet, self._frontend = workload, fleet, frontend
        self._env, self._engine = context.env, context.engine
        self._mover, self._handoff = mover, handoff
        self.timeouts = 0
        self._fresh: dict[int, bool] = {}  # whether its first token is yet to come

    def serve(self, request: Request) -> Generator[simpy.Event, Any, None]:
        """Take a request from the gateway to its last token."""
        while not request.completed:
            request.attempts += 1
            request.prefill_start_ps = request.prefill_end_ps = -1
            request.kv_start_ps = request.kv_end_ps = request.reserved_ps = -1
            request.prefill = request.decode = -1
            self._fresh[request.number] = not request.generated
            try:
                if self._handoff is None:
                    replica = yield from self._fleet.pick("colocated", request)
                    yield from self._alone(request, replica)
                else:
                    yield from self._apart(request)
            except (ReplicaLostError, _TimedOutError):
                continue
            if request.generated != request.output_tokens:
                raise RailweaveError(
                    f"request {request.name} ended with {request.generated} tokens"
                )
            request.last_ps = request.last_token_ps
            request.answered_ps = int(self._env.now)

    # ------------------------------------------------------------------ one replica
    def _alone(self, request: Request, replica: Replica) -> Generator[simpy.Event, Any, None]:
        """Prefill and decode on one replica."""
        request.local_prefill = True
        request.decode = replica.plan.number
        request.doing = f"its tokens from {replica.plan.name}"
        sequence = self._sequence(request, request.output_tokens - request.generated)
        request.tpot_bound_ps = self._token_bound_ps(request, replica)
        self._frontend.expect(request, sequence, replica.plan, request.tpot_bound_ps)
        replica.connections += 1
        try:
            yield from self._lost(self._frontend.deliver(request, replica.plan), replica)
            replica.submit(sequence)
            yield sequence.done
        finally:
            replica.connections -= 1
        request.prefill_end_ps = request.first_ps
        load = StepLoad.prefill(request.prompt_tokens - request.found_tokens,
                                cached=request.found_tokens)  # fmt: skip
        yield from self._frontend.answered(request)
        self._check(request, replica.bound_ps(load))

    def _sequence(self, request: Request, target: int) -> Sequence:
        return Sequence(
            request=request,
            prompt=request.prompt_tokens + request.generated,
            target=target,
            done=self._env.event(),
        )

    # ------------------------------------------------------------------ two replicas
    def _apart(self, request: Request) -> Generator[simpy.Event, Any, None]:
        """Prefill on one replica and decode on another."""
        keys = self._workload.router
        assert self._handoff is not None
        target = None
        if keys.order == "decode-first":
            target = yield from self._fleet.pick("decode", request)
            if self._near(request, target):
                yield from self._alone(request, target)
                return
        request.local_prefill = False
        source = yield from self._fleet.pick("prefill", request)
        if target is None and self._handoff.early:
            target = yield from self._fleet.pick("decode", request, source)
        request.prefill = source.plan.number
        prefilled = self._sequence(request, 0)
        source.connections += 1
        try:
            if self._handoff.early:
                assert target is not None
                yield from self._decode(request, source, target, prefilled, early=True)
            else:
                yield from self._prefill(request, source, prefilled)
                if target is None or target not in self._fleet.candidates("decode", source):
                    target = yield from self._lost(
                        self._fleet.pick("decode", request, source), source
                    )
                yield from self._decode(request, source, target, prefilled, early=False)
        finally:
            self._leave(source, prefilled)

    def _near(self, request: Request, target: Replica) -> bool:
        """Decide whether the decode replica computes the prompt itself."""
        cache = target.memory.cache
        cached = 0
        if cache is not None:
            cached = cache.leading(request.hash_ids, request.prompt_tokens)
        return request.prompt_tokens - cached < self._workload.router.remote_prefill_above

    def _prefill(
        self, request: Request, source: Replica, sequence: Sequence
    ) -> Generator[simpy.Event, Any, None]:
        yield from self._lost(self._frontend.deliver(request, source.plan), source)
        request.doing = f"its prefill on {source.plan.name}"
        source.submit(sequence)
        yield sequence.done
        request.prefill_end_ps = int(self._env.now)

    def _decode(
        self,
        request: Request,
        source: Replica,
        target: Replica,
        prefilled: Sequence,
        *,
        early: bool,
    ) -> Generator[simpy.Event, Any, None]:
        """Set blocks aside, move the cache, and generate; ``early``: prefill in between."""
        assert self._mover is not None
        assert self._handoff is not None
        request.decode = target.plan.number
        sequence = self._sequence(request, request.output_tokens - request.generated)
        sequence.granted = self._env.event()
        request.tpot_bound_ps = self._token_bound_ps(request, target)
        self._frontend.expect(request, sequence, target.plan, request.tpot_bound_ps)
        transfer = None
        target.connections += 1
        try:
            yield from self._reserve(request, source, target, sequence)
            transfer = self._handoff(
                self._mover, prefilled, source, target, self._workload.kv_transfer,
                skip=sequence.found,
            )  # fmt: skip
            if early:
                yield from self._lost(self._prefill(request, source, prefilled), source, target)
            request.doing = f"its KV cache from {source.plan.name} at {target.plan.name}"
            if request.kv_start_ps < 0:
                request.kv_start_ps = int(self._env.now)
            yield from self._lost(transfer.finish(), source, target)
            yield from self._without_contention(request, transfer)
            request.kv_end_ps = int(self._env.now)
            request.kv_bytes += transfer.size_bytes
            request.kv_bound_ps = transfer.bound_ps()
            self._leave(source, prefilled)  # the decode side has acknowledged
            request.doing = f"its tokens from {target.plan.name}"
            target.arrived(sequence)
            yield sequence.done
        except BaseException:
            if transfer is not None:
                transfer.abort()
            if target.up:
                target.withdraw(sequence)
            raise
        finally:
            target.connections -= 1
        found = request.found_tokens
        prefill_ps = source.bound_ps(StepLoad.prefill(request.prompt_tokens - found, cached=found))
        yield from self._frontend.answered(request)
        kv_ps = request.kv_bound_ps
        first_ps = max(prefill_ps, kv_ps) if early else prefill_ps + kv_ps
        self._engine.check_bound(
            f"the KV cache of request {request.name}", took_ps=request.kv_ps, bound_ps=kv_ps
        )
        self._check(request, first_ps + request.tpot_bound_ps)

    def _reserve(
        self, request: Request, source: Replica, target: Replica, sequence: Sequence
    ) -> Generator[simpy.Event, Any, None]:
        request.doing = f"KV blocks of {target.plan.name}"
        assert sequence.granted is not None
        target.reserve(sequence)
        waits = [sequence.granted, source.lost, target.lost, self._fleet.cutting(source, target)]
        patience = self._workload.kv_transfer.timeout
        if patience is not None and request.prefill_end_ps >= 0:
            waits.append(self._env.timeout(patience))
        if not sequence.granted.triggered:
            yield self._env.any_of(waits)
        if not sequence.granted.triggered:
            self.timeouts += 1
            raise _TimedOutError
        request.reserved_ps = int(self._env.now)

    def _without_contention(
        self, request: Request, transfer: Handoff
    ) -> Generator[simpy.Event, Any, None]:
        """Wait until the links that flows share can have carried them all.

        An engine without contention times each flow alone.
        """
        if not self._engine.capabilities.contention:
            end = request.kv_start_ps + transfer.bound_ps()
            yield self._env.timeout(max(0, end - int(self._env.now)))

    def _lost(
        self, what: Generator[simpy.Event, Any, Any], *replicas: Replica
    ) -> Generator[simpy.Event, Any, Any]:
        """Do something, unless a replica that it needs fails, or the way between them is cut."""
        process = self._env.process(what)
        process.defused = True  # it may fail when a replica does, at the very instant
        waits = [process, *(replica.lost for replica in replicas)]
        if len(replicas) > 1:
            waits.append(self._fleet.cutting(*replicas))
        try:
            yield self._env.any_of(waits)
        except BaseException:
            if process.is_alive:
                process.interrupt()
            raise
        return process.value

    def _leave(self, source: Replica, prefilled: Sequence) -> None:
        """Let a prefill replica have the blocks of a sequence back, now or when it is computed."""
        if prefilled.left:
            return
        prefilled.left = True
        source.connections -= 1
        if not source.up:
            return
        if prefilled.done.triggered:
            source.release(prefilled)
            return
        source.withdraw(prefilled)
        if prefilled in source.running:
            assert prefilled.done.callbacks is not None
            prefilled.done.callbacks.append(lambda _: source.release(prefilled))

    # ------------------------------------------------------------------ bounds
    def _token_bound_ps(self, request: Request, replica: Replica) -> int:
        """Return the least that an iteration of a request takes on an empty system.

        It is the first one: no later one has less cache to read.
        """
        return replica.bound_ps(StepLoad.decode([request.prompt_tokens - 1]))

    def _check(self, request: Request, ttft_bound_ps: int) -> None:
        """Put the bounds beside what was measured; raise `PhysicsError` if one was beaten."""
        if not self._fresh[request.number]:  # the attempt that made it has left no bound of its own
            ttft_bound_ps = request.tpot_bound_ps
        request.ttft_bound_ps = ttft_bound_ps
        name = f"request {request.name}"
        self._engine.check_bound(
            f"the first token of {name}", took_ps=request.ttft_ps, bound_ps=ttft_bound_ps
        )
        if request.output_tokens > 1:
            took = (request.last_token_ps - request.first_ps) // (request.output_tokens - 1)
            self._engine.check_bound(
                f"a token of {name}", took_ps=took, bound_ps=request.tpot_bound_ps
            )
