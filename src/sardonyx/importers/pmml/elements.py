"""Elements: what a document may hold, checked before anything is built.

An element that is not in these lists, or an extension attribute (`x-…`) that is not, could change
the meaning of what stands around it. It is refused rather than skipped.
"""

from __future__ import annotations

from .document import Element
from .refusal import Refusal, Refusals

# What describes the model or its training, or is refused where it is used, with all below it.
SKIPPED = frozenset(
    """Header MiningBuildTask ModelStats ModelExplanation ModelVerification Partition Annotation
    InlineTable row Extension Decisions Counts NumericInfo DiscrStats ContStats UnivariateStats
    ConstraintField VerificationFields ResultExplanation KohonenMap PCovMatrix EventValues
    ClusteringModelQuality PredictiveModelQuality Covariances Taxonomy
    Aggregate Lag""".split()  # noqa: SIM905
)
KNOWN = frozenset(
    """PMML DataDictionary DataField Value Interval TransformationDictionary DefineFunction
    ParameterField DerivedField LocalTransformations Constant FieldRef NormContinuous LinearNorm
    NormDiscrete Discretize DiscretizeBin MapValues FieldColumnPair Apply TextIndex
    MiningSchema MiningField Output OutputField Targets Target TargetValue
    True False SimplePredicate SimpleSetPredicate CompoundPredicate Array
    TreeModel Node ScoreDistribution RegressionModel RegressionTable NumericPredictor
    CategoricalPredictor PredictorTerm GeneralRegressionModel ParameterList Parameter FactorList
    CovariateList Predictor Categories Category Matrix MatCell PPMatrix PPCell ParamMatrix PCell
    MiningModel Segmentation Segment SupportVectorMachineModel LinearKernelType PolynomialKernelType
    RadialBasisKernelType SigmoidKernelType VectorDictionary VectorFields VectorInstance
    REAL-SparseArray INT-SparseArray Indices REAL-Entries INT-Entries SupportVectorMachine
    SupportVectors SupportVector Coefficients Coefficient NeuralNetwork NeuralInputs NeuralInput
    NeuralLayer Neuron Con NeuralOutputs NeuralOutput NaiveBayesModel BayesInputs BayesInput
    PairCounts TargetValueCounts TargetValueCount TargetValueStats TargetValueStat
    GaussianDistribution PoissonDistribution BayesOutput ClusteringModel ComparisonMeasure euclidean
    squaredEuclidean chebychev cityBlock minkowski simpleMatching jaccard tanimoto binarySimilarity
    ClusteringField MissingValueWeights Cluster NearestNeighborModel TrainingInstances
    InstanceFields InstanceField KNNInputs KNNInput Scorecard Characteristics Characteristic
    Attribute ComplexPartialScore RuleSetModel RuleSet RuleSelectionMethod SimpleRule CompoundRule
    BaseCumHazardTables BaselineStratum BaselineCell""".split()  # noqa: SIM905
)
EXTENSIONS = frozenset(
    """x-mathContext x-missingValueTreatment x-invalidValueTreatment x-invalidValueReplacement
    x-missingPredictionTreatment x-segmentId x-dataType x-isScorable x-missingThreshold
    x-reportXPath x-targetField x-nonScorable x-ruleFeature
    x-wordRE""".split()  # noqa: SIM905
)
MODELS_OF_OTHER_DATA = frozenset(
    """AssociationModel TimeSeriesModel SequenceModel TextModel BaselineModel BayesianNetworkModel
    GaussianProcessModel""".split()  # noqa: SIM905
)


def check_elements(root: Element, refusals: Refusals) -> None:
    """Collect a refusal for every element and extension that has no rule."""
    stack = [root]
    while stack:
        element = stack.pop()
        tag = element.tag
        if tag in SKIPPED or tag in MODELS_OF_OTHER_DATA:
            continue  # models of other data are refused as a whole
        if tag not in KNOWN:
            refusals.add(Refusal(element, "this element has no counterpart in ONNX"))
            continue
        for name in element.attributes:
            if name[:2] == "x-" and name not in EXTENSIONS:
                refusals.add(Refusal(element, f"attribute {name} is not supported"))
        stack.extend(element.children)
