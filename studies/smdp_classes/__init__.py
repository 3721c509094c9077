"""What a table over two classes before one server saves: docs/smdp-classes.md.

GoogLeNet on a Tesla P4, as the papers on SMDP batching have it, with an urgent and a patient class: the optimal table over the
lengths of both queues beside that of one queue, served in order of arrival or the urgent first, over load, over the ratio of
weights, and with and without the weight of energy. What they came to is kept in data/smdp-classes.csv and
data/smdp-classes-table.csv.
"""
