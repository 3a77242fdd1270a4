function y = onnx_min(a, b)
% The smaller one of two numbers; NaN if one of them is.
y = min(a, b);
y(isnan(a) | isnan(b)) = NaN;
end
