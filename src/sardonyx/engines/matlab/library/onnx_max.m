function y = onnx_max(a, b)
% The larger one of two numbers; NaN if one of them is.
y = max(a, b);
y(isnan(a) | isnan(b)) = NaN;
end
