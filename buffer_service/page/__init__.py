"""The live page: what this process of the buffer knows of its models, for people. `GET /` is the page, `GET /status` what it reads.

What may live here: samples of the counters (``history.py``), words for tables (``table_words.py``), what controllers wrote of
their decisions (``decisions.py``), which workers wrote themselves down (``devices.py``), which buffers follow the plans in Redis
(``buffers.py``), what all processes recorded (``recorded.py``), and who had no answer there (``unanswered.py``), the document
that the page reads (``status.py``), the page itself and how it is answered (``door.py``). What may not: what a request of a model
waits for.
"""

from sluice.buffer_service.page.buffers import Buffers
from sluice.buffer_service.page.decisions import Decisions
from sluice.buffer_service.page.devices import Devices
from sluice.buffer_service.page.door import Door
from sluice.buffer_service.page.recorded import Recorded
from sluice.buffer_service.page.status import Prices, Watch
from sluice.buffer_service.page.unanswered import UnansweredEverywhere

__all__ = ["Buffers", "Decisions", "Devices", "Door", "Prices", "Recorded", "UnansweredEverywhere", "Watch"]
