function y = onnx_pad(x, rank, before, after, mode, value)
% X with elements added BEFORE and AFTER each dimension, or removed if the count is negative.
y = x;
for d = 1:rank
    n = size(y, d);
    k = 1 - before(d):n + after(d);
    subs = repmat({':'}, 1, max(rank, 2));
    switch mode
        case 'edge'
            subs{d} = min(max(k, 1), n);
        case 'reflect'
            if n > 1
                m = mod(k - 1, 2 * (n - 1));
                subs{d} = min(m, 2 * (n - 1) - m) + 1;
            else
                subs{d} = ones(size(k));
            end
        case 'wrap'
            subs{d} = mod(k - 1, n) + 1;
        otherwise
            s = onnx_size(y, max(rank, 2));
            s(d) = numel(k);
            if islogical(y)
                new = repmat(logical(value), s);
            else
                new = repmat(cast(value, class(y)), s);
            end
            inside = k >= 1 & k <= n;
            from = subs;
            from{d} = k(inside);
            subs{d} = find(inside);
            new(subs{:}) = y(from{:});
            y = new;
            continue
    end
    y = y(subs{:});
end
end
