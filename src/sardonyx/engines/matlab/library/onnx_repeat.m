function y = onnx_repeat(x, s)
% X with its singleton dimensions repeated to the sizes S.
old = onnx_size(x, numel(s));
count = s;
count(old == s) = 1;
y = repmat(x, count);
end
