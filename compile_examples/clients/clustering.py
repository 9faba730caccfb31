"""k-means as scikit-learn has it: an estimator whose labels come from argmin."""

import torch
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.cluster import KMeans
from torch import Tensor

import customops


class TorchKMeans(ClusterMixin, BaseEstimator):
    """Lloyd's algorithm on tensors, from given centres."""

    def __init__(self, centres: Tensor, steps: int = 20):
        self.centres = centres
        self.steps = steps

    def fit(self, x: Tensor, y: None = None) -> "TorchKMeans":
        self.cluster_centers_ = self.centres.clone()
        for _ in range(self.steps):
            members = torch.nn.functional.one_hot(self.predict(x), len(self.centres)).to(x.dtype)
            counts = members.sum(0).clamp(min=1)
            self.cluster_centers_ = (members.T @ x) / counts[:, None]
        self.labels_ = self.predict(x)
        return self

    def predict(self, x: Tensor) -> Tensor:
        return customops.argmin(torch.cdist(x, self.cluster_centers_), 1)


def run() -> str:
    torch.manual_seed(0)
    clusters, means = 5, 10 * torch.randn(5, 3, dtype=torch.float64)
    points = means[torch.randint(clusters, (2000,))] + torch.randn(2000, 3, dtype=torch.float64)
    theirs = KMeans(clusters, init=means.numpy(), n_init=1, max_iter=20).fit(points.numpy())
    labels = TorchKMeans(means).fit_predict(points)
    if not torch.equal(labels, torch.from_numpy(theirs.labels_).long()):
        raise AssertionError("the labels differ")
    return f"{len(points)} points, {clusters} clusters, labels equal to scikit-learn's"
