"""Trains the classifier that model.py serves, into iris.joblib: python train.py"""

from pathlib import Path

import joblib
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

flowers, species = load_iris(return_X_y=True)
classifier = LogisticRegression(max_iter=1000).fit(flowers, species)
joblib.dump(classifier, Path(__file__).with_name("iris.joblib"))
