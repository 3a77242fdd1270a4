function y = onnx_reverse_sequence(x, rank, counts, time, batch)
% X with the first elements of every example in reverse order.
y = x;
for n = 1:size(x, batch)
    to = repmat({':'}, 1, rank);
    to{batch} = n;
    from = to;
    to{time} = 1:double(counts(n));
    from{time} = double(counts(n)):-1:1;
    y(to{:}) = x(from{:});
end
end
