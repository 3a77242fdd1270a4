function y = onnx_slice(x, rank, dims, starts, ends, steps)
% The elements of X from STARTS to before ENDS, along some dimensions.
subs = repmat({':'}, 1, max(rank, 2));
for i = 1:numel(dims)
    n = size(x, dims(i));
    first = double(starts(i));
    last = double(ends(i));
    step = double(steps(i));
    if first < 0
        first = first + n;
    end
    if last < 0
        last = last + n;
    end
    if step > 0
        subs{dims(i)} = (min(max(first, 0), n):step:min(max(last, 0), n) - 1) + 1;
    else
        subs{dims(i)} = (min(max(first, -1), n - 1):step:min(max(last, -1), n - 1) + 1) + 1;
    end
end
y = x(subs{:});
end
