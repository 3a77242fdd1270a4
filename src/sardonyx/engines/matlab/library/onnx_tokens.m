function y = onnx_tokens(x, rank, pattern, least, filler)
% The parts of each text that match a pattern, as a new dimension 1, filled up with FILLER.
parts = cell(1, numel(x));
longest = 0;
for k = 1:numel(x)
    words = regexp(x{k}, pattern, 'match');
    parts{k} = words(cellfun(@numel, words) >= least);
    longest = max(longest, numel(parts{k}));
end
y = repmat({filler}, longest, numel(x));
for k = 1:numel(x)
    y(1:numel(parts{k}), k) = parts{k};
end
y = onnx_sized(y, [longest, onnx_size(x, rank)]);
end
