function y = onnx_ngrams(x, rank, vocabulary, grams, sizes, columns, factors, mode, least, most, skips)
% How often each n-gram occurs in every row, by modes TF, IDF and TFIDF.
s = onnx_size(x, rank);
[~, numbers] = ismember(x, vocabulary);
numbers = reshape(numbers, s(1), []);
width = numel(factors);
y = zeros(width, size(numbers, 2), 'single');
grams = reshape(grams, [], numel(sizes));
for n = least:min(most, size(grams, 1))
    group = find(sizes(:)' == n);
    if isempty(group)
        continue
    end
    for step = 1:(skips * (n > 1)) + 1
        last = s(1) - (n - 1) * step;
        for r = 1:size(numbers, 2)
            row = numbers(:, r);
            tuples = row(bsxfun(@plus, (1:last)', (0:n - 1) * step));
            tuples = reshape(tuples, max(last, 0), n);
            [there, k] = ismember(tuples, grams(1:n, group)', 'rows');
            at = columns(group(k(there & all(tuples > 0, 2)))) + 1;
            for i = at(:)'
                y(i, r) = y(i, r) + 1;
            end
        end
    end
end
if ~strcmp(mode, 'TF')
    if strcmp(mode, 'IDF')
        y = single(y > 0);
    end
    y = y .* factors(:);
end
y = onnx_sized(y, [width, s(2:end)]);
end
