function y = onnx_lookup(x, keys, values, default)
% The value of each key; DEFAULT for what is no key.
[~, k] = ismember(x, keys);
if ~iscell(x)
    missing = find(isnan(keys));
    if ~isempty(missing)
        k(isnan(x)) = missing(end);
    end
end
values = [default; values(:)];
y = reshape(values(k + 1), size(x));
end
