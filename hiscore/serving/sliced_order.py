"""Whose turn it is where a large batch is launched in slices: small requests run between two of them.

So whoever comes waits for a slice at most, and large requests need not be divided: a batch that is opened takes
the oldest of them, whole. Small ones and large ones have turns, also while a batch is open, and the oldest of each
goes on in its turn, so that no request starves. So many small ones that they fill batches have full ones.

Pure: knows neither clock nor thread.
"""

from collections.abc import Sequence

from hiscore.serving.request_order import EXPECTED_SMALL, OpenBatch, Request, RequestOrder

# Chosen by simulation, see tests/support/batch_simulator.py.
MANY = 4
"""Batches between slices: if more than that waits in small requests, they have full batches."""
LARGE = 3 / 8
"""Of a full batch: what large requests take where small ones are to be expected."""


class SlicedOrder(RequestOrder[Request]):
    """The requests that wait for a model that launches large batches in slices."""

    def __init__(self, max_cost: int, between: int) -> None:
        """Start empty; a batch between two slices costs at most `between`. See `RequestOrder`."""
        super().__init__(max_cost)
        self._between = between
        self._turn_of_small = True
        self._divided: Request | None = None  # the last of which a part was taken

    def expects_small(self) -> bool:
        return self._least() < EXPECTED_SMALL * self._max_cost

    def remove(self, request: Request) -> None:
        super().remove(request)
        if request == self._divided:
            self._divided = None

    def fill_between(self, batch: OpenBatch[Request]) -> bool:
        small, _ = self._kinds()
        taken = self._turn_of_small and not self._are_many(small) and self._take_small(small, batch)
        self._turn_of_small = not taken
        return taken

    def fill(self, batch: OpenBatch[Request]) -> None:
        small, large = self._kinds()
        many = self._are_many(small)
        if self._turn_of_small and (
            self._take(small, batch, self._max_cost) if many else self._take_small(small, batch)
        ):
            self._turn_of_small = False
            return
        self._turn_of_small = True
        requests, limit = list(self), self._max_cost
        if large and self.expects_small():
            requests, limit = large, int(LARGE * self._max_cost)
        if requests[:1] == [self._divided]:  # those behind it have a turn
            requests = [*requests[1:], requests[0]]
        self._divided = None
        self._take(requests, batch, limit)

    def _kinds(self) -> tuple[list[Request], list[Request]]:
        """The small and the large requests, oldest first.

        The rest of one that is divided counts as large: its part may have slices left, and parts end in order.
        """
        kinds: tuple[list[Request], list[Request]] = [], []
        for request, (size, _) in self._waiting.items():
            kinds[size > self._between or request == self._divided].append(request)
        return kinds

    def _are_many(self, small: Sequence[Request]) -> bool:
        return sum(self._waiting[request][0] for request in small) > MANY * self._between

    def _take_small(self, small: Sequence[Request], batch: OpenBatch[Request]) -> bool:
        """Take the oldest, then the smallest, whole, until the next does not fit between two slices."""
        used, taken = 0, False
        for request in [*small[:1], *sorted(small[1:], key=lambda each: self._waiting[each][0])]:
            price = batch.price(request)
            if price > self._between:
                self._update(request, price)  # what it shared when it came is not there now
            elif used + price > self._between:
                break
            else:
                batch.take(request, price)
                self.remove(request)
                used, taken = used + price, True
        return taken

    def _take(self, requests: Sequence[Request], batch: OpenBatch[Request], limit: int) -> bool:
        """Take requests in order, whole, until the next does not fit; of one that fits no batch, a part."""
        used = 0
        for request in requests:
            price = batch.price(request)
            if used and used + price > limit:
                break
            room = limit if price > self._max_cost else self._max_cost - used
            taken = batch.take(request, room, at_least_one=not used)
            if taken is None:
                break
            used += taken[0]
            self._update(request, taken[1])
            if taken[1]:
                self._divided = request
                break
        return bool(requests)
