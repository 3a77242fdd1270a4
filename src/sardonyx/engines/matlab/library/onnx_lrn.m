function y = onnx_lrn(x, rank, count, alpha, beta, bias)
% Local response normalization over neighbouring channels.
c = rank - 1;
n = size(x, c);
squares = x .^ 2;
total = zeros(size(x), class(x));
subs = repmat({':'}, 1, rank);
for k = 1:n
    near = max(1, k - floor((count - 1) / 2)):min(n, k + ceil((count - 1) / 2));
    from = subs;
    from{c} = near;
    to = subs;
    to{c} = k;
    total(to{:}) = sum(squares(from{:}), c);
end
y = x ./ (bias + alpha / count * total) .^ beta;
end
