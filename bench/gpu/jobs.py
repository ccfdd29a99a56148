# SPDX-License-Identifier: Apache-2.0
"""The job files that speed.py runs."""

import re

EXAMPLES_DATA = "/usr/share/datasets/fashion-mnist"
TRAINING_IMAGES = 60000


def changed(text, data, batch=None, epochs=None, small=False):
    """Returns an example's text with its data in the directory `data` and another batch or number of epochs; with
    `small`, it trains on the 10,000 test images."""
    for field, value in (("batch_size", batch), ("epochs", epochs)):
        if value is None:
            continue
        text, count = re.subn(rf"\b{field}: \d+", f"{field}: {value}", text)
        if count != 1:
            raise ValueError(f"{field}: got {count} in the job's text, want 1")
    text = text.replace(EXAMPLES_DATA, str(data))
    return text.replace("/train-", "/t10k-") if small else text


def convolutions(data, layers, channels, batch, epochs, small=False):
    """Returns a job with much computation per weight: convolutions on whole images. No evaluation interrupts it."""
    body = "".join(f'  layers {{ name: "conv{i}" conv2d {{ filters: {channels} kernel: 3 padding: 1 no_bias: true }} }}\n'
                   f"  layers {{ relu {{}} }}\n" for i in range(1, layers + 1))
    return f"""name: "convolutions"
seed: 1
data {{
  train {{
    idx {{
      images: "{data}/{'t10k' if small else 'train'}-images-idx3-ubyte.gz"
      labels: "{data}/{'t10k' if small else 'train'}-labels-idx1-ubyte.gz"
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
