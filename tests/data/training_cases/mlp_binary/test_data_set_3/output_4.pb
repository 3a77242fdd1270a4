Bfc1.biasJ
?%<Må¾½c«o<