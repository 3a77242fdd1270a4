"""The reference evaluator of onnx as an engine of Sardonyx: models and training steps."""

import numpy as np
from onnx.reference import ReferenceEvaluator

import sardonyx as sx


class Rep:
    """A model that is ready to run."""

    def __init__(self, model):
        self.session = ReferenceEvaluator(model.proto())

    def run(self, feeds):
        return dict(zip(self.session.output_names, self.session.run(None, feeds)))


def prepare(model):
    return Rep(model)


class Variable:
    """One tensor of the state: a parameter, or a slot of the optimizer."""

    def __init__(self, array):
        self.dtype, self.shape = array.dtype, array.shape
        self.write(array)

    def read(self):
        return self.value.copy()

    def write(self, array):
        self.value = self.before = np.array(array)


class Step:
    """A step, an evaluation or an inference: state and data in, metrics and new state out."""

    def __init__(self, graph, variables):
        self.graph, self.hyper, self.variables = graph, graph.hyper, variables
        self.rep = Rep(graph.model)

    def run(self, feeds):
        data = {name: feeds[name] for name in self.graph.inputs}
        hyper = {n: np.asarray(feeds.get(n, v), v.dtype) for n, v in self.hyper.items()}
        state = {name: self.variables[name].value for name in self.graph.state}
        outputs = self.rep.run({**data, **hyper, **state})
        for name, output in self.graph.updates.items():
            variable = self.variables[name]
            variable.before, variable.value = variable.value, outputs[output]
        return {name: outputs[name] for name in self.graph.metrics}

    def before(self):
        return {name: variable.before for name, variable in self.variables.items()}


class Training(sx.TrainingRep):
    """A model in training; Sardonyx has turned its gradients and its optimizer into operators."""

    def variable(self, array):
        return Variable(array)

    def compile(self, graph):
        return Step(graph, self.variables)

    def execute(self, model, feeds):
        return Rep(model).run(feeds)


def prepare_training(model):
    return Training(model)
