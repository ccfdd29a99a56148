# SPDX-License-Identifier: Apache-2.0
#
# Writes 30,000 visits to a shop as a table with tabs, in the order of time: who saw which item, and whether they
# clicked. Some values are missing, and an item has up to three tags. The same on every machine. Usage:
#
#     awk -f examples/visits.awk > visits.tsv
#
# docs/guide/recommendation.md makes a served model of it.

# The minimal standard generator; every product is exact in floating point.
function draw() {
  state = state * 16807 % 2147483647
  return state / 2147483647
}

# Whole numbers from 0, of which small ones are frequent.
function rare(n) {
  return int(n * draw() ^ 2)
}

BEGIN {
  state = 7
  split("fr de it es pl se", countries, " ")
  split("sale new bike ski run swim book game tool pet", words, " ")
  for (i = 0; i < 400; ++i) {
    user[i] = draw() - 0.5
    group[i] = int(draw() * 4)
    home[i] = countries[1 + int(draw() * 6)]
  }
  for (i = 0; i < 150; ++i) {
    item[i] = draw() * 3 - 1.5
    kind[i] = int(draw() * 4)
    price[i] = int(100 + draw() * 9900) / 100
    tags[i] = ""
    for (n = int(draw() * 4); n > 0; --n) {
      k = 1 + int(draw() * 10)
      if (index("," tags[i] ",", "," words[k] ",")) continue
      tags[i] = tags[i] (tags[i] == "" ? "" : ",") words[k]
      item[i] += (k - 5.5) / 5
    }
  }
  OFS = "\t"
  print "time", "user", "item", "tags", "country", "price", "clicked"
  for (row = 0; row < 30000; ++row) {
    u = rare(400)
    i = rare(150)
    logit = user[u] + item[i] + (group[u] == kind[i] ? 2 : -1) - price[i] / 50
    print 1700000000 + 20 * row, "u" u, "i" i, tags[i], draw() < 0.05 ? "" : home[u], draw() < 0.05 ? "" : price[i], \
      draw() < 1 / (1 + exp(-logit)) ? 1 : 0
  }
}
