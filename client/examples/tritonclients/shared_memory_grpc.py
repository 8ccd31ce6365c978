"""Score three items by way of shared memory: neither texts nor scores go through the connection.

The server must see the same /dev/shm and let callers register memory, which that of `make serve` does not.
usage: python shared_memory_grpc.py [HOST:PORT]
"""

import sys

import numpy as np
from tritonclient.grpc import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import serialize_byte_tensor, shared_memory

items = [" an apple", " a hammer", " a pear"]
texts = {"query": ["Is this a fruit? It is"], "items": items, "labels": [" Yes", " No"]}
# Each text as its length and its bytes; after all texts the room for the scores, float32 [1, items, labels].
packed = {name: serialize_byte_tensor(np.array([values], np.object_)) for name, values in texts.items()}
room = 4 * len(items) * len(texts["labels"])
size = sum(len(tensor.item()) for tensor in packed.values()) + room

region = shared_memory.create_shared_memory_region("call", "/hiscore-example", size)
with InferenceServerClient(sys.argv[1] if len(sys.argv) > 1 else "localhost:8001") as client:
    client.register_system_shared_memory("call", "/hiscore-example", size)
    try:
        inputs, place = [], 0
        for name, tensor in packed.items():
            shared_memory.set_shared_memory_region(region, [tensor], offset=place)
            inputs.append(InferInput(name, [1, len(texts[name])], "BYTES"))
            inputs[-1].set_shared_memory("call", len(tensor.item()), offset=place)
            place += len(tensor.item())
        scores = InferRequestedOutput("scores")
        scores.set_shared_memory("call", room, offset=place)
        client.infer("score", inputs, outputs=[scores], parameters={"apply_softmax": True})
        answer = shared_memory.get_contents_as_numpy(region, np.float32, [len(items), 2], offset=place).copy()
    finally:
        client.unregister_system_shared_memory("call")
        shared_memory.destroy_shared_memory_region(region)
for item, (yes, _) in zip(items, answer, strict=True):
    print(f"{yes:.3f}{item}")
