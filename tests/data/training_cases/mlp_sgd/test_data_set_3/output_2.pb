Bfc0.biasJYí½QDk;´®§<
<ˆ=8tô<