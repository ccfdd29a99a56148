# SPDX-License-Identifier: Apache-2.0
"""The job files that speed.py runs, and small data for them."""

import gzip
import re
import struct

EXAMPLES_DATA = "/usr/share/datasets/fashion-mnist"
TRAINING_IMAGES = 60000
STAND_IN_IMAGES = 64


def changed(text, data, batch=None, epochs=None):
    """Returns an example's text with its data in the directory `data` and another batch or number of epochs."""
    for field, value in (("batch_size", batch), ("epochs", epochs)):
        if value is None:
            continue
        text, count = re.subn(rf"\b{field}: \d+", f"{field}: {value}", text)
        if count != 1:
            raise ValueError(f"{field}: got {count} in the job's text, want 1")
    return text.replace(EXAMPLES_DATA, str(data))


def convolutions(data, layers, channels, batch, epochs):
    """Returns a job with much computation per weight: convolutions on whole images. No evaluation interrupts it."""
    body = "".join(f'  layers {{ name: "conv{i}" conv2d {{ filters: {channels} kernel: 3 padding: 1 no_bias: true }} }}\n'
                   f"  layers {{ relu {{}} }}\n" for i in range(1, layers + 1))
    return f"""name: "convolutions"
seed: 1
data {{
  train {{
    idx {{
      images: "{data}/train-images-idx3-ubyte.gz"
      labels: "{data}/train-labels-idx1-ubyte.gz"
    }}
  }}
  normalization {{ mean: 72.94 stddev: 90.02 }}
}}
model {{
  input {{ height: 28 width: 28 }}
{body}  layers {{ average_pool {{}} }}
  layers {{ name: "kinds" dense {{ units: 10 }} }}
  loss {{ softmax_cross_entropy {{}} }}
}}
training {{ epochs: {epochs} batch_size: {batch} }}
optimizer {{ sgd {{ learning_rate: 0.01 }} }}
policy {{ sync {{ deterministic: true }} }}
"""


def without_test_data(text):
    """Removes the test data, so that the job is not evaluated."""
    text, count = re.subn(r"(?ms)^  test \{.*?^  \}\n", "", text)
    if count != 1:
        raise ValueError(f"test data: got {count} in the job's text, want 1")
    return text


def write_stand_in_data(folder):
    """Writes data of the form of Fashion-MNIST: a label's images have a bright row of their own."""
    for name in ("train", "t10k"):
        labels = bytes(i % 10 for i in range(STAND_IN_IMAGES))
        images = b"".join(bytes(200 if row // 28 == 2 * label else (label * row) % 50 for row in range(28 * 28))
                          for label in labels)
        for path, head, body in ((f"{name}-images-idx3-ubyte.gz", (0x803, STAND_IN_IMAGES, 28, 28), images),
                                 (f"{name}-labels-idx1-ubyte.gz", (0x801, STAND_IN_IMAGES), labels)):
            with gzip.open(folder / path, "wb") as file:
                file.write(struct.pack(f">{len(head)}I", *head) + body)
