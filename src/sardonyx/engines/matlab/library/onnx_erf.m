function y = onnx_erf(x)
% The error function in the class of X.
y = erf(x);
end
