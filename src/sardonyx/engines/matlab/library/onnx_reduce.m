function y = onnx_reduce(x, rank, dims, kind, keep)
% A reduction over dimensions: 'sum', 'prod', 'max', 'min' or 'mean'.
y = x;
for d = dims
    switch kind
        case 'sum'
            y = sum(y, d);
        case 'prod'
            y = prod(y, d);
        case 'mean'
            y = sum(y, d) / size(x, d);
        case 'max'
            bad = any(isnan(y), d);
            y = max(y, [], d);
            y(bad) = NaN;
        case 'min'
            bad = any(isnan(y), d);
            y = min(y, [], d);
            y(bad) = NaN;
    end
end
if ~keep
    y = onnx_drop(y, rank, dims);
end
end
