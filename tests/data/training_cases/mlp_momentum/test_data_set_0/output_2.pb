Bfc0.biasJ
αζ½ΰ ΌwΆΌ¨€t=W+‚<